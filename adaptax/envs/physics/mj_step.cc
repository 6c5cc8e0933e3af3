// MuJoCo's step of many lanes as XLA custom calls for the CPU, on the thread that calls them: of
// bodies, and of scenes, whose observations and rewards are computed here as well.
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

// Whether MuJoCo got through `work`; `message` says what it stumbled on. `data` is what is in use.
template <class Work>
bool Guarded(mjData* volatile& data, const Work& work) {
  const auto before = _mjPRIVATE__get_tls_error_fn();
  _mjPRIVATE__set_tls_error_fn(KeepMessage);
  const bool fine = setjmp(on_error) == 0;
  if (fine) {
    work();
  } else if (data) {
    mj_deleteData(data);  // an error leaves its stack anywhere
  }
  _mjPRIVATE__set_tls_error_fn(before);
  return fine;
}

bool StepLanes(const Lanes& lanes, Simulations* simulations) {
  mjData* volatile data = nullptr;
  return Guarded(data, [&] {
    data = simulations->Take();
    for (int64_t lane = 0; lane < lanes.num; ++lane) StepLane(lanes, lane, data);
    simulations->Give(data);
  });
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

// Scenes: an arm that follows a guide, and what is seen and paid, as arithmetic on what MuJoCo knows.

constexpr int kSceneState =
    mjSTATE_FULLPHYSICS | mjSTATE_WARMSTART | mjSTATE_MOCAP_POS | mjSTATE_MOCAP_QUAT;
constexpr int kControls = 4;  // three of the guide, one of the gripper

// As in adaptax/envs/physics/symbols.py.
enum Operation : int32_t {
  kConstant, kRead, kMemory, kAction, kTouch, kAdd, kSubtract, kMultiply, kDivide, kNegative,
  kAbsolute, kSquareRoot, kExponential, kLogarithm, kSine, kCosine, kLess, kLessOrEqual, kEqual,
  kAnd, kLesser, kGreater, kSelect,
};

struct Instruction {
  int32_t operation, a, b, c;
};

struct Scene {
  Simulations simulations;
  double low[3], high[3];  // of the guide
  float scale;             // metres for an action of 1
  int32_t num_substeps;
  std::vector<Instruction> code;  // each writes the register of its own number
  std::vector<double> constants;
  std::vector<int32_t> seen, kept;  // registers of the numbers that are seen and of the memory after
};

struct SceneLanes {
  int64_t num, state_size, places_size, num_seen;
  const uint32_t* scenes;
  const double* places;
  const double* state;
  const float* action;
  double* next_state;
  float* seen;
};

const mjtNum* Field(const mjData* data, int32_t which) {
  const mjtNum* fields[] = {data->qpos,      data->xpos,      data->xquat,     data->xmat,
                            data->site_xpos, data->site_xmat, data->geom_xpos, data->geom_xmat};
  return fields[which];
}

// Whether forces act between a geom and each of two others.
bool Touches(const mjData* data, int32_t geom, int32_t first, int32_t second) {
  double force[2] = {0, 0};
  for (int i = 0; i < data->ncon; ++i) {
    const mjContact& contact = data->contact[i];
    if (contact.efc_address < 0) continue;
    if (contact.geom[0] != geom && contact.geom[1] != geom) continue;
    const int other = contact.geom[0] == geom ? contact.geom[1] : contact.geom[0];
    if (other == first) force[0] += data->efc_force[contact.efc_address];
    if (other == second) force[1] += data->efc_force[contact.efc_address];
  }
  return force[0] > 0 && force[1] > 0;
}

void Compute(const Scene& scene, const mjData* data, const double* memory, const float* action,
             double* x) {
  for (size_t i = 0; i < scene.code.size(); ++i) {
    const auto [operation, a, b, c] = scene.code[i];
    switch (operation) {
      case kConstant: x[i] = scene.constants[a]; break;
      case kRead: x[i] = Field(data, a)[b]; break;
      case kMemory: x[i] = memory[a]; break;
      case kAction: x[i] = action[a]; break;
      case kTouch: x[i] = Touches(data, a, b, c); break;
      case kAdd: x[i] = x[a] + x[b]; break;
      case kSubtract: x[i] = x[a] - x[b]; break;
      case kMultiply: x[i] = x[a] * x[b]; break;
      case kDivide: x[i] = x[a] / x[b]; break;
      case kNegative: x[i] = -x[a]; break;
      case kAbsolute: x[i] = std::fabs(x[a]); break;
      case kSquareRoot: x[i] = std::sqrt(x[a]); break;
      case kExponential: x[i] = std::exp(x[a]); break;
      case kLogarithm: x[i] = std::log(x[a]); break;
      case kSine: x[i] = std::sin(x[a]); break;
      case kCosine: x[i] = std::cos(x[a]); break;
      case kLess: x[i] = x[a] < x[b]; break;
      case kLessOrEqual: x[i] = x[a] <= x[b]; break;
      case kEqual: x[i] = x[a] == x[b]; break;
      case kAnd: x[i] = x[a] != 0 && x[b] != 0; break;
      case kLesser: x[i] = x[b] < x[a] ? x[b] : x[a]; break;
      case kGreater: x[i] = x[b] > x[a] ? x[b] : x[a]; break;
      case kSelect: x[i] = x[a] != 0 ? x[b] : x[c]; break;
    }
  }
}

// Steps one lane; one whose action is not finite is all NaN after it, and stays so. A simulation
// that diverges goes on from the model's first state, where MuJoCo puts it, as under Python.
void StepScene(const SceneLanes& lanes, int64_t lane, const Scene& scene, mjData* data) {
  thread_local std::vector<double> registers;
  const float* action = lanes.action + lane * kControls;
  const double* state = lanes.state + lane * lanes.state_size;
  double* next_state = lanes.next_state + lane * lanes.state_size;
  float* seen = lanes.seen + lane * lanes.num_seen;
  std::fill(next_state, next_state + lanes.state_size, kNaN);
  std::fill(seen, seen + lanes.num_seen, std::numeric_limits<float>::quiet_NaN());
  if (!std::all_of(action, action + kControls, [](float x) { return std::isfinite(x); })) return;
  if (std::isnan(state[0])) return;  // which MuJoCo would begin anew
  // The model is the scene's but for where the lane has its bodies and sites.
  mjModel model = *scene.simulations.model();
  model.body_pos = const_cast<double*>(lanes.places + lane * lanes.places_size);
  model.site_pos = model.body_pos + 3 * model.nbody;
  mj_setState(&model, data, state, kSceneState);
  for (int i = 0; i < 3; ++i) {
    const float clipped = std::min(std::max(action[i], -1.0f), 1.0f);
    const float moved = clipped * scene.scale;
    data->mocap_pos[i] =
        std::min(std::max(data->mocap_pos[i] + moved, scene.low[i]), scene.high[i]);
  }
  const mjtNum straight_down[4] = {1, 0, 1, 0};
  std::copy(straight_down, straight_down + 4, data->mocap_quat);
  data->ctrl[0] = action[3];
  data->ctrl[1] = -static_cast<mjtNum>(action[3]);
  for (int32_t i = 0; i < scene.num_substeps; ++i) mj_step(&model, data);
  // Positions of the moment, and the forces that the next step's solver starts from.
  mj_forward(&model, data);
  mj_getState(&model, data, next_state, kSceneState);
  const int physics = mj_stateSize(&model, kSceneState);
  registers.resize(scene.code.size());
  Compute(scene, data, state + physics, action, registers.data());
  for (size_t i = 0; i < scene.seen.size(); ++i)
    seen[i] = static_cast<float>(registers[scene.seen[i]]);
  double* memory = next_state + physics;
  for (size_t i = 0; i < scene.kept.size(); ++i) memory[i] = registers[scene.kept[i]];
  std::fill(memory + scene.kept.size(), next_state + lanes.state_size, 0.0);
}

bool StepScenes(const SceneLanes& lanes) {
  mjData* volatile data = nullptr;
  return Guarded(data, [&] {
    Scene* scene = nullptr;
    for (int64_t lane = 0; lane < lanes.num; ++lane) {
      Scene* const own = Pointer<Scene>(lanes.scenes + 2 * lane);
      if (own != scene) {
        if (data) scene->simulations.Give(data);
        data = nullptr;
        scene = own;
        data = own->simulations.Take();
      }
      StepScene(lanes, lane, *own, data);
    }
    scene->simulations.Give(data);
  });
}

ffi::Error Scenes(Words scenes, Words places, Words state, Floats action,
                  ffi::Result<Words> next_state, ffi::Result<Floats> seen) {
  SceneLanes lanes;
  lanes.num = scenes.element_count() / 2;
  if (lanes.num == 0) return ffi::Error::Success();
  lanes.state_size = state.element_count() / 2 / lanes.num;
  lanes.places_size = places.element_count() / 2 / lanes.num;
  lanes.num_seen = seen->element_count() / lanes.num;
  if (static_cast<int64_t>(action.element_count()) != kControls * lanes.num ||
      next_state->element_count() != state.element_count())
    return ffi::Error::InvalidArgument("the buffers do not fit the scene");
  lanes.scenes = scenes.typed_data();
  for (int64_t lane = 0; lane < lanes.num; ++lane) {
    const auto* scene = Pointer<const Scene>(lanes.scenes + 2 * lane);
    const mjModel* model = scene->simulations.model();
    const int64_t state_size = mj_stateSize(model, kSceneState) + scene->kept.size();
    if (model->nu != 2 || model->nmocap != 1 || state_size > lanes.state_size ||
        3 * (model->nbody + model->nsite) > lanes.places_size ||
        static_cast<int64_t>(scene->seen.size()) != lanes.num_seen)
      return ffi::Error::InvalidArgument("the buffers do not fit the scene");
  }
  lanes.places = reinterpret_cast<const double*>(places.typed_data());
  lanes.state = reinterpret_cast<const double*>(state.typed_data());
  lanes.action = action.typed_data();
  lanes.next_state = reinterpret_cast<double*>(next_state->typed_data());
  lanes.seen = seen->typed_data();
  return StepScenes(lanes) ? ffi::Error::Success() : ffi::Error::Internal(message);
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(AdaptaxStepScenes, Scenes,
                              ffi::Ffi::Bind()
                                  .Arg<Words>()     // scenes [..., 2]
                                  .Arg<Words>()     // places of bodies and sites [..., 2 P]
                                  .Arg<Words>()     // states, physics and memory [..., 2 S]
                                  .Arg<Floats>()    // actions [..., 4] in [-1, 1]
                                  .Ret<Words>()     // states after the step [..., 2 S]
                                  .Ret<Floats>());  // what is seen of it [..., N]

extern "C" {
void* adaptax_simulations_new(const mjModel* model) {
  if (!mju_user_warning) mju_user_warning = DropWarning;
  return new Simulations(model);
}
void adaptax_simulations_delete(void* simulations) {
  delete static_cast<Simulations*>(simulations);
}
void* adaptax_scene_new(const mjModel* model, const double* low, const double* high, double scale,
                        int32_t num_substeps, const int32_t* code, int64_t code_size,
                        const double* constants, int64_t num_constants, const int32_t* seen,
                        int64_t num_seen, const int32_t* kept, int64_t num_kept) {
  if (!mju_user_warning) mju_user_warning = DropWarning;
  auto* scene = new Scene{Simulations(model)};
  std::copy(low, low + 3, scene->low);
  std::copy(high, high + 3, scene->high);
  scene->scale = static_cast<float>(scale);
  scene->num_substeps = num_substeps;
  for (int64_t i = 0; i < code_size; ++i, code += 4)
    scene->code.push_back({code[0], code[1], code[2], code[3]});
  scene->constants.assign(constants, constants + num_constants);
  scene->seen.assign(seen, seen + num_seen);
  scene->kept.assign(kept, kept + num_kept);
  return scene;
}
void adaptax_scene_delete(void* scene) { delete static_cast<Scene*>(scene); }
int adaptax_mujoco_version() { return mj_version(); }
}
