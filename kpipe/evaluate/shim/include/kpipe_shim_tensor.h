// at::Tensor: one pointer to the real TensorImpl, laid out as the real class, with every operation in the runtime library.
#pragma once
#include <kpipe_shim_core.h>

namespace kpipe_shim {
class Tensor;
using TensorList = ArrayRef<Tensor>;

namespace internals {
extern void* const undefined;  // what the pointer of a default-constructed tensor is
void retain(void*);
void release(void*);
[[noreturn]] void wrong_dimensions(int64_t expected, int64_t got);
void parallel_run(int64_t begin, int64_t end, int64_t grain, void (*body)(const void*, int64_t, int64_t), const void* f);
}

template <class T> struct DefaultPtrTraits { using PtrType = T*; };
#ifdef __CUDACC__
template <class T> struct RestrictPtrTraits { using PtrType = T* __restrict__; };
#define KPIPE_SHIM_BOTH __host__ __device__
#else
#define KPIPE_SHIM_BOTH
#endif

// Sizes and strides belong to the tensor.
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t> class TensorAccessor {
 public:
  using PtrType = typename Traits<T>::PtrType;
  KPIPE_SHIM_BOTH TensorAccessor(PtrType data, const I* sizes, const I* strides) : data_(data), sizes_(sizes), strides_(strides) {}
  KPIPE_SHIM_BOTH I size(I i) const { return sizes_[i]; }
  KPIPE_SHIM_BOTH I stride(I i) const { return strides_[i]; }
  KPIPE_SHIM_BOTH PtrType data() const { return data_; }
  KPIPE_SHIM_BOTH decltype(auto) operator[](I i) const {
    if constexpr (N == 1) return static_cast<T&>(data_[strides_[0] * i]);
    else return TensorAccessor<T, N - 1, Traits, I>(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1);
  }

 private:
  PtrType data_;
  const I *sizes_, *strides_;
};

// Carries its sizes and strides along, to a GPU for example.
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t> class PackedTensorAccessor {
 public:
  using PtrType = typename Traits<T>::PtrType;
  PackedTensorAccessor(PtrType data, const int64_t* sizes, const int64_t* strides) : data_(data) {
    for (size_t i = 0; i < N; i++) { sizes_[i] = static_cast<I>(sizes[i]); strides_[i] = static_cast<I>(strides[i]); }
  }
  KPIPE_SHIM_BOTH I size(I i) const { return sizes_[i]; }
  KPIPE_SHIM_BOTH I stride(I i) const { return strides_[i]; }
  KPIPE_SHIM_BOTH PtrType data() const { return data_; }
  KPIPE_SHIM_BOTH decltype(auto) operator[](I i) const {
    return TensorAccessor<T, N, Traits, I>(data_, sizes_, strides_)[i];
  }

 private:
  PtrType data_;
  I sizes_[N], strides_[N];
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = PackedTensorAccessor<T, N, Traits, int32_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = PackedTensorAccessor<T, N, Traits, int64_t>;

struct DeprecatedTypeProperties {
  ScalarType dtype;
  DeviceType device;
  ScalarType scalarType() const { return dtype; }
  bool is_cuda() const { return device == kCUDA; }
};

class Tensor {
  void* impl_;
  void* typed(ScalarType, bool writable) const;
  void read(void* out, ScalarType) const;

 public:
  Tensor() noexcept : impl_(internals::undefined) {}
  Tensor(const Tensor& o) : impl_(o.impl_) { if (impl_ != internals::undefined) internals::retain(impl_); }
  Tensor(Tensor&& o) noexcept : impl_(o.impl_) { o.impl_ = internals::undefined; }
  ~Tensor() { if (impl_ != internals::undefined) internals::release(impl_); }
  Tensor& operator=(const Tensor& o) &;
  Tensor& operator=(Tensor&& o) & noexcept;
  Tensor& operator=(const Scalar&) &&;  // x[i] = v writes into x
  Tensor& operator=(const Tensor&) &&;
  Tensor& operator=(Tensor&&) &&;

  bool defined() const { return impl_ != internals::undefined; }
  void reset();
  bool is_same(const Tensor& o) const { return impl_ == o.impl_; }
  int64_t dim() const;
  int64_t ndimension() const { return dim(); }
  int64_t numel() const;
  int64_t size(int64_t d) const;
  int64_t stride(int64_t d) const;
  int64_t storage_offset() const;
  IntArrayRef sizes() const;
  IntArrayRef strides() const;
  size_t nbytes() const;
  size_t itemsize() const;
  int64_t element_size() const;
  ScalarType scalar_type() const;
  TypeMeta dtype() const;
  Layout layout() const;
  Device device() const;
  DeviceIndex get_device() const;
  TensorOptions options() const;
  DeprecatedTypeProperties type() const { return {scalar_type(), device().type()}; }
  bool is_cpu() const;
  bool is_cuda() const;
  bool is_contiguous(MemoryFormat = MemoryFormat::Contiguous) const;
  bool is_floating_point() const;
  bool is_complex() const;
  bool is_signed() const;
  bool is_sparse() const;
  bool is_alias_of(const Tensor&) const;
  bool requires_grad() const;
  MemoryFormat suggest_memory_format() const;

  void* data_ptr() const;
  void* mutable_data_ptr() const { return data_ptr(); }
  const void* const_data_ptr() const;
  template <class T> T* data_ptr() const { return static_cast<T*>(typed(DtypeOf<T>::value, true)); }
  template <class T> T* mutable_data_ptr() const { return data_ptr<T>(); }
  template <class T> const T* const_data_ptr() const {
    return static_cast<const T*>(typed(DtypeOf<std::remove_const_t<T>>::value, false));
  }
  template <class T> T* data() const { return data_ptr<T>(); }
  template <class T> T item() const { T v; read(&v, DtypeOf<T>::value); return v; }

  template <class T, size_t N> TensorAccessor<T, N> accessor() const& {
    static_assert(N > 0, "an accessor needs a dimension");
    if (dim() != static_cast<int64_t>(N)) internals::wrong_dimensions(N, dim());
    return TensorAccessor<T, N>(pointer<T>(), sizes().data(), strides().data());
  }
  template <class T, size_t N> TensorAccessor<T, N> accessor() && = delete;
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
  PackedTensorAccessor<T, N, Traits, I> generic_packed_accessor() const& {
    if (dim() != static_cast<int64_t>(N)) internals::wrong_dimensions(N, dim());
    return PackedTensorAccessor<T, N, Traits, I>(pointer<T>(), sizes().data(), strides().data());
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor32<T, N, Traits> packed_accessor32() const& {
    check_int32();
    return generic_packed_accessor<T, N, Traits, int32_t>();
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor64<T, N, Traits> packed_accessor64() const& { return generic_packed_accessor<T, N, Traits, int64_t>(); }

  Tensor contiguous(MemoryFormat = MemoryFormat::Contiguous) const;
  Tensor cpu() const;
  Tensor cuda() const;
  Tensor toType(ScalarType) const;
  Tensor to(TypeMeta, bool non_blocking = false, bool copy = false) const;
  const Tensor& requires_grad_(bool = true) const;

  Tensor operator~() const;
  Tensor operator-() const;
#define KPIPE_SHIM_ASSIGNMENTS(_) _(+=, Tensor) _(-=, Tensor) _(*=, Tensor) _(/=, Tensor) _(&=, Tensor) _(|=, Tensor) \
  _(^=, Tensor) _(+=, Scalar) _(-=, Scalar) _(*=, Scalar) _(/=, Scalar)
#define KPIPE_SHIM_ASSIGNMENT(op, type) Tensor& operator op(const type&);
  KPIPE_SHIM_ASSIGNMENTS(KPIPE_SHIM_ASSIGNMENT)
#undef KPIPE_SHIM_ASSIGNMENT
  Tensor operator[](int64_t i) const;
  Tensor operator[](const Scalar& i) const;
  Tensor operator[](const Tensor& i) const;

#include <kpipe_shim_methods.inc>

 private:
  void check_int32() const;
  template <class T> T* pointer() const {
    if constexpr (std::is_const_v<T>) return const_data_ptr<T>();
    else return data_ptr<T>();
  }
};

#define KPIPE_SHIM_OPERATORS(_) _(+) _(-) _(*) _(/) _(%) _(&) _(|) _(^) _(<) _(<=) _(>) _(>=) _(==) _(!=)
#define KPIPE_SHIM_OPERATOR(op)                        \
  Tensor operator op(const Tensor& a, const Tensor& b); \
  Tensor operator op(const Tensor& a, const Scalar& b); \
  Tensor operator op(const Scalar& a, const Tensor& b);
KPIPE_SHIM_OPERATORS(KPIPE_SHIM_OPERATOR)
#undef KPIPE_SHIM_OPERATOR

#include <kpipe_shim_functions.inc>
namespace factories {
#include <kpipe_shim_factories.inc>
Tensor from_blob(void* data, IntArrayRef sizes, const TensorOptions& = {});
Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, const TensorOptions& = {});
}
Tensor from_blob(void* data, IntArrayRef sizes, const TensorOptions& = {});

class NoGradGuard {
  bool before_;
 public:
  NoGradGuard();
  ~NoGradGuard();
  NoGradGuard(const NoGradGuard&) = delete;
};

std::optional<Device> device_of(const Tensor&);
int get_num_threads();
template <class F> void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  if (begin >= end) return;
#ifdef _OPENMP
  internals::parallel_run(begin, end, grain, [](const void* g, int64_t a, int64_t b) { (*static_cast<const F*>(g))(a, b); }, &f);
#else
  f(begin, end);
#endif
}
}  // namespace kpipe_shim
