// Definitions for kpipe_shim_cuda.h and kpipe_shim_cuda_guard.h.
#pragma once

namespace kpipe_shim {
namespace gpu {
static CUDAStream shim(c10::cuda::CUDAStream s) { return {s.stream(), s.device_index()}; }
void CUDAStream::synchronize() const { C10_CUDA_CHECK(cudaStreamSynchronize(stream_)); }
CUDAStream getCurrentCUDAStream(DeviceIndex d) { return shim(c10::cuda::getCurrentCUDAStream(d)); }
CUDAStream getDefaultCUDAStream(DeviceIndex d) { return shim(c10::cuda::getDefaultCUDAStream(d)); }
cudaDeviceProp* getCurrentDeviceProperties() { return at::cuda::getCurrentDeviceProperties(); }
cudaDeviceProp* getDeviceProperties(DeviceIndex d) { return at::cuda::getDeviceProperties(d); }
DeviceIndex current_device() { return c10::cuda::current_device(); }
DeviceIndex device_count() { return c10::cuda::device_count(); }
void check(int32_t error, const char* file, const char* function, uint32_t line) {
  c10::cuda::c10_cuda_check_implementation(error, file, function, line, true);
}
static DeviceIndex enter(DeviceIndex d) {
  auto before = c10::cuda::current_device();
  if (d >= 0) c10::cuda::set_device(d);
  return before;
}
static DeviceIndex enter(Device d) {
  TORCH_CHECK(d.is_cuda(), "CUDAGuard needs a CUDA device, not ", real(d));
  return enter(d.index());
}
CUDAGuard::CUDAGuard(DeviceIndex d) : before_(enter(d)) {}
CUDAGuard::CUDAGuard(Device d) : before_(enter(d)) {}
CUDAGuard::~CUDAGuard() { c10::cuda::set_device(before_); }
OptionalCUDAGuard::OptionalCUDAGuard(std::optional<Device> d) : before_(d ? enter(*d) : DeviceIndex(-1)) {}
OptionalCUDAGuard::OptionalCUDAGuard(std::optional<DeviceIndex> d) : before_(d ? enter(*d) : DeviceIndex(-1)) {}
OptionalCUDAGuard::~OptionalCUDAGuard() {
  if (before_ >= 0) c10::cuda::set_device(before_);
}
}  // namespace gpu
}  // namespace kpipe_shim
