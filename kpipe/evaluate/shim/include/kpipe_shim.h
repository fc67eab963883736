// Stands in for torch's C++ headers: what kernels use of them, declared only, so that a kernel compiles in a fraction
// of a second. The definitions are in the runtime library, which was built once against the real headers.
// What is not here does not compile, and then the stock build decides.
//
// KPIPE_SHIM_FULL also brings half-precision types and the rest of what torch/extension.h includes of the standard
// library: slow to compile. What torch/extension.h does not include is not here either, <cfloat> for example.
#ifndef KPIPE_SHIM_H
#define KPIPE_SHIM_H
#include <cstddef>
#ifdef KPIPE_SHIM_FULL
#include <atomic>
#include <bit>
#include <bitset>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <complex>
#include <concepts>
#include <condition_variable>
#include <ctime>
#include <cwchar>
#include <deque>
#include <exception>
#include <forward_list>
#include <functional>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <list>
#include <locale>
#include <map>
#include <memory>
#include <mutex>
#include <numbers>
#include <queue>
#include <ranges>
#include <ratio>
#include <set>
#include <span>
#include <sstream>
#include <stack>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <typeindex>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <valarray>
#include <variant>
#include <unistd.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>
#else
#undef _GLIBCXX_USE_STD_SPEC_FUNCS  // the special functions of <cmath> double the time of a small kernel
#endif
#include <cassert>
#include <kpipe_shim_core.h>
#include <kpipe_shim_tensor.h>
#include <kpipe_shim_check.h>
#include <kpipe_shim_python.h>

#ifndef C10_HOST_DEVICE
#define C10_HOST_DEVICE KPIPE_SHIM_BOTH
#define C10_LIKELY(e) (__builtin_expect(static_cast<bool>(e), 1))
#define C10_UNLIKELY(e) (__builtin_expect(static_cast<bool>(e), 0))
#define C10_ALWAYS_INLINE inline __attribute__((__always_inline__))
#define C10_NOINLINE __attribute__((noinline))
#define C10_RESTRICT __restrict
#endif

namespace c10 {
using namespace kpipe_shim::core;
}
namespace caffe2 {
using kpipe_shim::TypeMeta;
}
namespace at {
using namespace kpipe_shim;
using c10::BFloat16;
using c10::Half;
}
namespace torch {
using namespace at;
#include <kpipe_shim_torch.inc>
using kpipe_shim::factories::from_blob;
using Dtype = at::ScalarType;
constexpr auto kUInt8 = at::kByte, kInt8 = at::kChar, kInt16 = at::kShort, kInt32 = at::kInt, kInt64 = at::kLong,
               kFloat16 = at::kHalf, kFloat32 = at::kFloat, kFloat64 = at::kDouble;
constexpr auto kU8 = kUInt8, kI8 = kInt8, kI16 = kInt16, kI32 = kInt32, kI64 = kInt64, kF16 = kFloat16, kF32 = kFloat32,
               kF64 = kFloat64;
}
#endif
