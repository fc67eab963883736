// Streams, devices and error checks of c10::cuda and at::cuda. Only kernels that include torch's headers for them see it.
#pragma once
#include <kpipe_shim_check.h>

#include <cuda_runtime_api.h>

namespace kpipe_shim {
namespace gpu {
class CUDAStream {
  cudaStream_t stream_;
  DeviceIndex device_;

 public:
  CUDAStream(cudaStream_t stream, DeviceIndex device) : stream_(stream), device_(device) {}
  cudaStream_t stream() const { return stream_; }
  operator cudaStream_t() const { return stream_; }
  DeviceIndex device_index() const { return device_; }
  void synchronize() const;
};
CUDAStream getCurrentCUDAStream(DeviceIndex device = -1);
CUDAStream getDefaultCUDAStream(DeviceIndex device = -1);
cudaDeviceProp* getCurrentDeviceProperties();
cudaDeviceProp* getDeviceProperties(DeviceIndex);
DeviceIndex current_device();
DeviceIndex device_count();
void check(int32_t error, const char* file, const char* function, uint32_t line);
}  // namespace gpu
}  // namespace kpipe_shim

#ifndef KPIPE_SHIM_RUNTIME
namespace c10 {
namespace cuda {
using kpipe_shim::gpu::CUDAStream;
using kpipe_shim::gpu::current_device;
using kpipe_shim::gpu::device_count;
using kpipe_shim::gpu::getCurrentCUDAStream;
using kpipe_shim::gpu::getDefaultCUDAStream;
}
}
namespace at {
namespace cuda {
using namespace c10::cuda;
using kpipe_shim::gpu::getCurrentDeviceProperties;
using kpipe_shim::gpu::getDeviceProperties;
}
}
#define C10_CUDA_CHECK(EXPR)                                                                                     \
  do {                                                                                                           \
    const cudaError_t __err = EXPR;                                                                              \
    ::kpipe_shim::gpu::check(static_cast<int32_t>(__err), __FILE__, __func__, static_cast<uint32_t>(__LINE__));  \
  } while (0)
#define AT_CUDA_CHECK(EXPR) C10_CUDA_CHECK(EXPR)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#endif
