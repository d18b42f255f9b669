// Let autograd of a CPU build of torch run over fake CUDA tensors. Loaded before torch, by LD_PRELOAD.
//
// The engine asks for the accelerator, its current stream, and whether it has a context. A CPU build has no accelerator,
// so the engine throws. Here there is one device with one stream and no context; nothing ever waits.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace at {

struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
};

REGISTER_CUDA_HOOKS(CUDAHooks)

namespace accelerator {

// A CPU build's own returns none: which accelerators there are is decided when torch is compiled.
std::optional<DeviceType> getAccelerator(bool) { return kCUDA; }

}  // namespace accelerator

}  // namespace at

namespace {

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::DeviceType::CUDA, 0));
  }
};

}  // namespace

C10_REGISTER_GUARD_IMPL(CUDA, Guard)
