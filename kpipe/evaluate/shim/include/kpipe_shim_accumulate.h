// ATen/AccumulateType.h: the type in which sums of a type are kept.
#pragma once
#include <kpipe_shim.h>

namespace kpipe_shim {
namespace internals {
template <class T, bool cuda> struct Accumulate { using type = int64_t; };
template <bool cuda> struct Accumulate<float, cuda> { using type = std::conditional_t<cuda, float, double>; };
template <bool cuda> struct Accumulate<double, cuda> { using type = double; };
template <bool cuda> struct Accumulate<bool, cuda> { using type = bool; };
template <bool cuda> struct Accumulate<::c10::Half, cuda> { using type = float; };
template <bool cuda> struct Accumulate<::c10::BFloat16, cuda> { using type = float; };
}  // namespace internals
template <class T, bool cuda> using acc_type = typename internals::Accumulate<T, cuda>::type;
}  // namespace kpipe_shim
