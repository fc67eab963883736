// c10/cuda/CUDAGuard.h: the current device for the length of a scope.
#pragma once
#include <kpipe_shim_cuda.h>

namespace kpipe_shim {
namespace gpu {
class CUDAGuard {
  DeviceIndex before_;

 public:
  explicit CUDAGuard(DeviceIndex);
  explicit CUDAGuard(Device);
  CUDAGuard(const CUDAGuard&) = delete;
  CUDAGuard& operator=(const CUDAGuard&) = delete;
  ~CUDAGuard();
};

class OptionalCUDAGuard {
  DeviceIndex before_ = -1;

 public:
  OptionalCUDAGuard() = default;
  explicit OptionalCUDAGuard(std::optional<Device>);
  explicit OptionalCUDAGuard(std::optional<DeviceIndex>);
  OptionalCUDAGuard(const OptionalCUDAGuard&) = delete;
  OptionalCUDAGuard& operator=(const OptionalCUDAGuard&) = delete;
  ~OptionalCUDAGuard();
};
}  // namespace gpu
}  // namespace kpipe_shim

#ifndef KPIPE_SHIM_RUNTIME
namespace c10 {
namespace cuda {
using kpipe_shim::gpu::CUDAGuard;
using kpipe_shim::gpu::OptionalCUDAGuard;
}
}
#endif
