// Bare MuJoCo: lanes stepped one after another with given controls and nothing else, each step
// from a cold solver as in adaptax. What no sampler can beat.
#include <mujoco/mujoco.h>

#include <algorithm>

extern "C" void bare_steps(const mjModel* model, int num_lanes, int num_steps, int frame_skip,
                           double* states, const double* controls) {
  const int size = mj_stateSize(model, mjSTATE_FULLPHYSICS);
  mjData* data = mj_makeData(model);
  for (int t = 0; t < num_steps; ++t) {
    for (int lane = 0; lane < num_lanes; ++lane) {
      mj_setState(model, data, states + lane * size, mjSTATE_FULLPHYSICS);
      std::fill(data->qacc_warmstart, data->qacc_warmstart + model->nv, 0.0);
      std::copy(controls + (t * num_lanes + lane) * model->nu,
                controls + (t * num_lanes + lane + 1) * model->nu, data->ctrl);
      for (int i = 0; i < frame_skip; ++i) mj_step(model, data);
      mj_getState(model, data, states + lane * size, mjSTATE_FULLPHYSICS);
    }
  }
  mj_deleteData(data);
}
