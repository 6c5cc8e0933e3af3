// MuJoCo's step of many lanes as an XLA custom call for the CPU, on the thread that calls it.
//
// Physics states go in and out as raw bits, two 32-bit words a number, because the programs around
// this one compute in 32 bits. Models are operands, the words of their addresses: an attribute
// would be kept in XLA's cache of compiled programs, and be stale in the next process.
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <vector>

#include <mujoco/mujoco.h>

#include "xla/ffi/api/ffi.h"

// What MuJoCo's own Python bindings use to outlive `mju_error`, which otherwise ends the process.
extern "C" {
void _mjPRIVATE__set_tls_error_fn(void (*handler)(const char*));
void (*_mjPRIVATE__get_tls_error_fn(void))(const char*);
}

namespace {

namespace ffi = xla::ffi;
constexpr int kState = mjSTATE_FULLPHYSICS;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Simulations for models of one shape, as many as there have been calls at once.
class Simulations {
 public:
  explicit Simulations(const mjModel* model) : model_(model) {}
  ~Simulations() {
    for (mjData* data : idle_) mj_deleteData(data);
  }
  mjData* Take() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        mjData* data = idle_.back();
        idle_.pop_back();
        return data;
      }
    }
    return mj_makeData(model_);
  }
  void Give(mjData* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(data);
  }
  const mjModel* model() const { return model_; }

 private:
  const mjModel* const model_;
  std::mutex mutex_;
  std::vector<mjData*> idle_;
};

thread_local std::jmp_buf on_error;
thread_local char message[512];

void KeepMessage(const char* text) {
  std::snprintf(message, sizeof(message), "MuJoCo: %s", text);
  std::longjmp(on_error, 1);
}

// In place of MuJoCo's own, which writes MUJOCO_LOG.TXT into whatever folder the process is in. What
// it warns of, a simulation that diverges, is told by NaN.
void DropWarning(const char*) {}

template <class T>
T* Pointer(const uint32_t* words) {
  uint64_t address;
  std::memcpy(&address, words, sizeof(address));
  return reinterpret_cast<T*>(address);
}

// All lanes of a call; plain, because an error jumps over what follows it.
struct Lanes {
  int64_t num, num_substeps, state_size, control_size, sensor_size;
  const uint32_t* models;
  const double* state;
  const float* action;
  double* next_state;
  double* sensors;
};

// Steps one lane. What MuJoCo has given up, and would silently start anew, is all NaN after it.
void StepLane(const Lanes& lanes, int64_t lane, mjData* data) {
  const mjModel* model = Pointer<const mjModel>(lanes.models + 2 * lane);
  const float* action = lanes.action + lane * lanes.control_size;
  double* next_state = lanes.next_state + lane * lanes.state_size;
  double* first = lanes.sensors + 2 * lane * lanes.sensor_size;
  double* last = first + lanes.sensor_size;
  std::fill(next_state, next_state + lanes.state_size, kNaN);
  std::fill(first, last + lanes.sensor_size, kNaN);
  for (int i = 0; i < model->nu; ++i) {
    if (!std::isfinite(action[i])) return;
    const mjtNum low = model->actuator_ctrlrange[2 * i], high = model->actuator_ctrlrange[2 * i + 1];
    const float clipped = std::min(std::max(action[i], -1.0f), 1.0f);
    data->ctrl[i] = (low + high) / 2 + (high - low) / 2 * static_cast<mjtNum>(clipped);
  }
  mj_setState(model, data, lanes.state + lane * lanes.state_size, kState);
  // The state is all that a step starts from: the solver's last solution is not part of it.
  std::fill(data->qacc_warmstart, data->qacc_warmstart + model->nv, 0.0);
  for (auto& warning : data->warning) warning.number = 0;
  for (int64_t i = 0; i < lanes.num_substeps; ++i) {
    mj_step(model, data);
    for (const mjtWarning bad : {mjWARN_BADQPOS, mjWARN_BADQVEL, mjWARN_BADQACC})
      if (data->warning[bad].number > 0) return;
    // Sensors are computed before the integration: those of the first substep are the start's.
    if (i == 0) std::copy(data->sensordata, data->sensordata + lanes.sensor_size, first);
  }
  std::copy(data->sensordata, data->sensordata + lanes.sensor_size, last);
  mj_getState(model, data, next_state, kState);
}

// Whether MuJoCo got through; `message` says what it stumbled on.
bool StepLanes(const Lanes& lanes, Simulations* simulations) {
  const auto before = _mjPRIVATE__get_tls_error_fn();
  _mjPRIVATE__set_tls_error_fn(KeepMessage);
  mjData* volatile data = nullptr;
  const bool fine = setjmp(on_error) == 0;
  if (fine) {
    data = simulations->Take();
    for (int64_t lane = 0; lane < lanes.num; ++lane) StepLane(lanes, lane, data);
    simulations->Give(data);
  } else if (data) {
    mj_deleteData(data);  // an error leaves its stack anywhere
  }
  _mjPRIVATE__set_tls_error_fn(before);
  return fine;
}

using Words = ffi::Buffer<ffi::U32>;
using Floats = ffi::Buffer<ffi::F32>;

ffi::Error Step(Words simulations, Words models, Words state, Floats action,
                ffi::Result<Words> next_state, ffi::Result<Words> sensors, int64_t num_substeps) {
  Lanes lanes;
  lanes.num = models.element_count() / 2;
  if (lanes.num == 0) return ffi::Error::Success();
  auto* shared = Pointer<Simulations>(simulations.typed_data());
  const mjModel* model = shared->model();
  lanes.num_substeps = num_substeps;
  lanes.state_size = mj_stateSize(model, kState);
  lanes.control_size = model->nu;
  lanes.sensor_size = model->nsensordata;
  const auto holds = [&](const auto& buffer, int64_t words) {
    return static_cast<int64_t>(buffer.element_count()) == lanes.num * words;
  };
  if (!holds(state, 2 * lanes.state_size) || !holds(*next_state, 2 * lanes.state_size) ||
      !holds(action, lanes.control_size) || !holds(*sensors, 4 * lanes.sensor_size))
    return ffi::Error::InvalidArgument("the buffers do not fit the MuJoCo model");
  lanes.models = models.typed_data();
  lanes.state = reinterpret_cast<const double*>(state.typed_data());
  lanes.action = action.typed_data();
  lanes.next_state = reinterpret_cast<double*>(next_state->typed_data());
  lanes.sensors = reinterpret_cast<double*>(sensors->typed_data());
  return StepLanes(lanes, shared) ? ffi::Error::Success() : ffi::Error::Internal(message);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(AdaptaxMjStep, Step,
                              ffi::Ffi::Bind()
                                  .Arg<Words>()    // simulations [..., 2], of the first lane
                                  .Arg<Words>()    // models [..., 2]
                                  .Arg<Words>()    // states [..., 2 S]
                                  .Arg<Floats>()   // actions [..., A] in [-1, 1]
                                  .Ret<Words>()    // states after the step [..., 2 S]
                                  .Ret<Words>()    // first and last sensors [..., 2, 2 D]
                                  .Attr<int64_t>("num_substeps"));

extern "C" {
void* adaptax_simulations_new(const mjModel* model) {
  if (!mju_user_warning) mju_user_warning = DropWarning;
  return new Simulations(model);
}
void adaptax_simulations_delete(void* simulations) {
  delete static_cast<Simulations*>(simulations);
}
int adaptax_mujoco_version() { return mj_version(); }
}
