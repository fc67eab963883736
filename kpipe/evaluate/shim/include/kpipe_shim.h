// What a KernelBench-style answer uses of <torch/extension.h>, with every tensor operation out of line.
//
// A Tensor here is one pointer to the real at::TensorImpl; its methods are C functions of libkpipe_shim.so, which was
// built once against the real headers. What is not here does not compile, and then the stock build decides.
#pragma once
#include <algorithm>
#include <array>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

typedef struct _object PyObject;

extern "C" {
struct kp_options { int8_t dtype, device, index, requires_grad, given; };  // given: 1 dtype, 2 device
struct kp_scalar { int8_t kind; int64_t i; double d; };                    // kind: 0 int, 1 double, 2 bool
struct kp_function { const char* name; PyObject* (*call)(PyObject*, PyObject* const*, int64_t); };

void kp_retain(void*);
void kp_release(void*);
void* kp_data(void*, int dtype);
int64_t kp_numel(void*);
int64_t kp_dim(void*);
int64_t kp_size(void*, int64_t);
int64_t kp_stride(void*, int64_t);
const int64_t* kp_sizes(void*, int64_t* n);
const int64_t* kp_strides(void*, int64_t* n);
int kp_dtype(void*);
int kp_is_contiguous(void*);
int64_t kp_element_size(void*);
kp_options kp_options_of(void*);
void* kp_to(void*, kp_options);
void* kp_full(const int64_t*, int64_t, kp_scalar, kp_options);
void* kp_full_like(void*, kp_scalar, kp_options);
void kp_fill(void*, kp_scalar);
kp_scalar kp_item(void*);
void* kp_sum_dim(void*, const int64_t*, int64_t n, int keepdim);
void* kp_mean_dim(void*, const int64_t*, int64_t n, int keepdim);
void* kp_scalar_op(int op, void*, kp_scalar, int reversed);
void kp_scalar_inplace(int op, void*, kp_scalar);
[[noreturn]] void kp_throw(const char* function, const char* file, int line, const char* message);

#define KP_METHOD0(name) void* kp0_##name(void*);
#define KP_METHOD1(name) void* kp1_##name(void*, int64_t);
#define KP_METHOD2(name) void* kp2_##name(void*, int64_t, int64_t);
#define KP_METHOD3(name) void* kp3_##name(void*, int64_t, int64_t, int64_t);
#define KP_SHAPE(name) void* kps_##name(void*, const int64_t*, int64_t);
#define KP_UNARY(name) void* kpu_##name(void*);
#define KP_BINARY(name) void* kpb_##name(void*, void*);
#define KP_INPLACE(name) void kpi_##name(void*, void*);
#define KP_LIKE(name) void* kpl_##name(void*, kp_options);
#define KP_FACTORY(name) void* kpf_##name(const int64_t*, int64_t, kp_options);
#include <kpipe_shim_table.h>
#undef KP_METHOD0
#undef KP_METHOD1
#undef KP_METHOD2
#undef KP_METHOD3
#undef KP_SHAPE
#undef KP_UNARY
#undef KP_BINARY
#undef KP_INPLACE
#undef KP_LIKE
#undef KP_FACTORY

int kp_get_tensor(PyObject*, void**);
int kp_get_int(PyObject*, int64_t*);
int kp_get_double(PyObject*, double*);
int kp_get_bool(PyObject*, bool*);
const char* kp_get_string(PyObject*, int64_t* n);
int kp_is_none(PyObject*);
int64_t kp_length(PyObject*);
PyObject* kp_element(PyObject*, int64_t);
PyObject* kp_put_tensor(void*);
PyObject* kp_put_int(int64_t);
PyObject* kp_put_double(double);
PyObject* kp_put_bool(bool);
PyObject* kp_put_string(const char*, int64_t);
PyObject* kp_put_none();
PyObject* kp_put_sequence(PyObject**, int64_t, int tuple);
PyObject* kp_arguments_error(const char* name);
PyObject* kp_raise_current();
PyObject* kp_module(const char* name, const kp_function*, int);
}

namespace c10 { inline namespace kpipe {
enum class ScalarType : int8_t {
  Byte = 0, Char = 1, Short = 2, Int = 3, Long = 4, Half = 5, Float = 6, Double = 7, Bool = 11, BFloat16 = 15
};
enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;

struct Device {
  DeviceType kind; int8_t number;
  Device(DeviceType kind, int8_t number = -1) : kind(kind), number(number) {}
  bool is_cpu() const { return kind == DeviceType::CPU; }
  bool is_cuda() const { return kind == DeviceType::CUDA; }
  DeviceType type() const { return kind; }
  int8_t index() const { return number; }
  bool operator==(const Device& o) const { return kind == o.kind && number == o.number; }
  bool operator!=(const Device& o) const { return !(*this == o); }
};

template <class T> class ArrayRef {
  const T* first_ = nullptr; size_t n_ = 0;
 public:
  ArrayRef() = default;
  ArrayRef(const T& one) : first_(&one), n_(1) {}
  ArrayRef(const T* first, size_t n) : first_(first), n_(n) {}
  ArrayRef(const std::vector<T>& v) : first_(v.data()), n_(v.size()) {}
  template <size_t N> ArrayRef(const std::array<T, N>& a) : first_(a.data()), n_(N) {}
  ArrayRef(const std::initializer_list<T>& l) : first_(l.begin()), n_(l.size()) {}
  size_t size() const { return n_; }
  bool empty() const { return n_ == 0; }
  const T* data() const { return first_; }
  const T* begin() const { return first_; }
  const T* end() const { return first_ + n_; }
  const T& operator[](size_t i) const { return first_[i]; }
  const T& front() const { return first_[0]; }
  const T& back() const { return first_[n_ - 1]; }
  std::vector<T> vec() const { return std::vector<T>(begin(), end()); }
  bool equals(ArrayRef o) const { return std::equal(begin(), end(), o.begin(), o.end()); }
};
template <class T> bool operator==(ArrayRef<T> a, ArrayRef<T> b) { return a.equals(b); }
template <class T> bool operator!=(ArrayRef<T> a, ArrayRef<T> b) { return !a.equals(b); }
using IntArrayRef = ArrayRef<int64_t>;
template <class T> using optional = std::optional<T>;
constexpr auto nullopt = std::nullopt;

struct Scalar {
  kp_scalar v;
  Scalar(bool b) : v{2, b, 0.0} {}
  template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
  Scalar(T i) : v{0, (int64_t)i, 0.0} {}
  template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
  Scalar(T d) : v{1, 0, (double)d} {}
  explicit Scalar(kp_scalar s) : v(s) {}
  template <class T> T to() const { return v.kind == 1 ? (T)v.d : (T)v.i; }
  double toDouble() const { return to<double>(); }
  int64_t toLong() const { return to<int64_t>(); }
};
} }

namespace at { using namespace c10; inline namespace kpipe {
using c10::Device; using c10::DeviceType; using c10::IntArrayRef; using c10::Scalar; using c10::ScalarType;
using c10::kCPU; using c10::kCUDA;
constexpr auto kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short, kInt = ScalarType::Int,
               kLong = ScalarType::Long, kHalf = ScalarType::Half, kFloat = ScalarType::Float,
               kDouble = ScalarType::Double, kBool = ScalarType::Bool, kBFloat16 = ScalarType::BFloat16;

template <class T> struct dtype_of;
template <> struct dtype_of<uint8_t> { static constexpr int value = 0; };
template <> struct dtype_of<int8_t> { static constexpr int value = 1; };
template <> struct dtype_of<int16_t> { static constexpr int value = 2; };
template <> struct dtype_of<int32_t> { static constexpr int value = 3; };
template <> struct dtype_of<int64_t> { static constexpr int value = 4; };
template <> struct dtype_of<float> { static constexpr int value = 6; };
template <> struct dtype_of<double> { static constexpr int value = 7; };
template <> struct dtype_of<bool> { static constexpr int value = 11; };

struct TensorOptions {
  kp_options o{6, 0, -1, 0, 0};
  TensorOptions() = default;
  TensorOptions(kp_options o) : o(o) {}
  TensorOptions(ScalarType t) { o.dtype = (int8_t)t; o.given = 1; }
  TensorOptions(Device d) { o.device = (int8_t)d.kind; o.index = d.number; o.given = 2; }
  TensorOptions(DeviceType d) : TensorOptions(Device(d)) {}
  TensorOptions dtype(ScalarType t) const { auto r = *this; r.o.dtype = (int8_t)t; r.o.given |= 1; return r; }
  TensorOptions device(Device d) const {
    auto r = *this; r.o.device = (int8_t)d.kind; r.o.index = d.number; r.o.given |= 2; return r;
  }
  TensorOptions device(DeviceType d, int8_t index = -1) const { return device(Device(d, index)); }
  TensorOptions requires_grad(bool b) const { auto r = *this; r.o.requires_grad = b; return r; }
};

template <class T, size_t N> class TensorAccessor {
  T* data_; const int64_t* sizes_; const int64_t* strides_;
 public:
  TensorAccessor(T* data, const int64_t* sizes, const int64_t* strides) : data_(data), sizes_(sizes), strides_(strides) {}
  int64_t size(int64_t i) const { return sizes_[i]; }
  int64_t stride(int64_t i) const { return strides_[i]; }
  T* data() const { return data_; }
  decltype(auto) operator[](int64_t i) const {
    if constexpr (N == 1) return (data_[i * strides_[0]]);
    else return TensorAccessor<T, N - 1>(data_ + i * strides_[0], sizes_ + 1, strides_ + 1);
  }
};

class Tensor {
  void* p_ = nullptr;
 public:
  Tensor() = default;
  static Tensor adopt(void* p) { Tensor t; t.p_ = p; return t; }
  void* raw() const { return p_; }
  void* give() { void* p = p_; p_ = nullptr; return p; }
  Tensor(const Tensor& o) : p_(o.p_) { if (p_) kp_retain(p_); }
  Tensor(Tensor&& o) noexcept : p_(o.p_) { o.p_ = nullptr; }
  ~Tensor() { if (p_) kp_release(p_); }
  Tensor& operator=(const Tensor& o) { Tensor copy(o); std::swap(p_, copy.p_); return *this; }
  Tensor& operator=(Tensor&& o) noexcept { std::swap(p_, o.p_); return *this; }
  bool defined() const { return p_ != nullptr; }

  template <class T> T* data_ptr() const {
    return (T*)kp_data(p_, dtype_of<std::remove_const_t<T>>::value);
  }
  template <class T> T* mutable_data_ptr() const { return data_ptr<T>(); }
  template <class T> const T* const_data_ptr() const { return data_ptr<T>(); }
  void* data_ptr() const { return kp_data(p_, -1); }
  void* mutable_data_ptr() const { return kp_data(p_, -1); }
  const void* const_data_ptr() const { return kp_data(p_, -1); }
  template <class T, size_t N> TensorAccessor<T, N> accessor() const {
    if (dim() != (int64_t)N) {
      std::string m = "TensorAccessor expected " + std::to_string(N) + " dims but tensor has " + std::to_string(dim());
      kp_throw(__func__, __FILE__, __LINE__, m.c_str());
    }
    return TensorAccessor<T, N>(data_ptr<T>(), sizes().data(), strides().data());
  }
  int64_t numel() const { return kp_numel(p_); }
  int64_t dim() const { return kp_dim(p_); }
  int64_t ndimension() const { return kp_dim(p_); }
  int64_t size(int64_t i) const { return kp_size(p_, i); }
  int64_t stride(int64_t i) const { return kp_stride(p_, i); }
  IntArrayRef sizes() const { int64_t n; auto s = kp_sizes(p_, &n); return {s, (size_t)n}; }
  IntArrayRef strides() const { int64_t n; auto s = kp_strides(p_, &n); return {s, (size_t)n}; }
  ScalarType scalar_type() const { return (ScalarType)kp_dtype(p_); }
  ScalarType dtype() const { return scalar_type(); }
  TensorOptions options() const { return kp_options_of(p_); }
  Device device() const { auto o = kp_options_of(p_); return Device((DeviceType)o.device, o.index); }
  bool is_cpu() const { return device().is_cpu(); }
  bool is_cuda() const { return device().is_cuda(); }
  bool is_contiguous() const { return kp_is_contiguous(p_); }
  int64_t element_size() const { return kp_element_size(p_); }
  int64_t nbytes() const { return numel() * element_size(); }
  template <class T> T item() const { return Scalar(kp_item(p_)).to<T>(); }
  Tensor operator[](int64_t i) const { return select(0, i); }
  Tensor to(TensorOptions o) const { return adopt(kp_to(p_, o.o)); }
  Tensor to(ScalarType t) const { return to(TensorOptions(t)); }
  Tensor to(Device d) const { return to(TensorOptions(d)); }
  Tensor flatten() const { return flatten(0, -1); }
  Tensor sum(IntArrayRef d, bool keepdim = false) const { return adopt(kp_sum_dim(p_, d.data(), d.size(), keepdim)); }
  Tensor mean(IntArrayRef d, bool keepdim = false) const { return adopt(kp_mean_dim(p_, d.data(), d.size(), keepdim)); }
  Tensor& zero_() { kp_fill(p_, Scalar(0).v); return *this; }
  Tensor& fill_(Scalar s) { kp_fill(p_, s.v); return *this; }
  Tensor& add_(Scalar s) { kp_scalar_inplace(0, p_, s.v); return *this; }
  Tensor& sub_(Scalar s) { kp_scalar_inplace(1, p_, s.v); return *this; }
  Tensor& mul_(Scalar s) { kp_scalar_inplace(2, p_, s.v); return *this; }
  Tensor& div_(Scalar s) { kp_scalar_inplace(3, p_, s.v); return *this; }

#define KP_METHOD0(name) Tensor name() const { return adopt(kp0_##name(p_)); }
#define KP_METHOD1(name) Tensor name(int64_t a) const { return adopt(kp1_##name(p_, a)); }
#define KP_METHOD2(name) Tensor name(int64_t a, int64_t b) const { return adopt(kp2_##name(p_, a, b)); }
#define KP_METHOD3(name) Tensor name(int64_t a, int64_t b, int64_t c) const { return adopt(kp3_##name(p_, a, b, c)); }
#define KP_SHAPE(name) Tensor name(IntArrayRef s) const { return adopt(kps_##name(p_, s.data(), s.size())); }
#define KP_UNARY(name) Tensor name() const { return adopt(kpu_##name(p_)); }
#define KP_BINARY(name) Tensor name(const Tensor& o) const { return adopt(kpb_##name(p_, o.p_)); }
#define KP_INPLACE(name) Tensor& name(const Tensor& o) { kpi_##name(p_, o.p_); return *this; }
#define KP_LIKE(name)
#define KP_FACTORY(name)
#include <kpipe_shim_table.h>
#undef KP_METHOD0
#undef KP_METHOD1
#undef KP_METHOD2
#undef KP_METHOD3
#undef KP_SHAPE
#undef KP_UNARY
#undef KP_BINARY
#undef KP_INPLACE
#undef KP_LIKE
#undef KP_FACTORY
};

#define KP_METHOD0(name)
#define KP_METHOD1(name)
#define KP_METHOD2(name)
#define KP_METHOD3(name)
#define KP_SHAPE(name)
#define KP_INPLACE(name)
#define KP_UNARY(name) inline Tensor name(const Tensor& t) { return t.name(); }
#define KP_BINARY(name) inline Tensor name(const Tensor& a, const Tensor& b) { return a.name(b); }
#define KP_LIKE(name) \
  inline Tensor name(const Tensor& t, TensorOptions o = {}) { return Tensor::adopt(kpl_##name(t.raw(), o.o)); }
#define KP_FACTORY(name) \
  inline Tensor name(IntArrayRef s, TensorOptions o = {}) { return Tensor::adopt(kpf_##name(s.data(), s.size(), o.o)); }
#include <kpipe_shim_table.h>
#undef KP_METHOD0
#undef KP_METHOD1
#undef KP_METHOD2
#undef KP_METHOD3
#undef KP_SHAPE
#undef KP_UNARY
#undef KP_BINARY
#undef KP_INPLACE
#undef KP_LIKE
#undef KP_FACTORY

inline Tensor full(IntArrayRef s, Scalar v, TensorOptions o = {}) {
  return Tensor::adopt(kp_full(s.data(), s.size(), v.v, o.o));
}
inline Tensor full_like(const Tensor& t, Scalar v, TensorOptions o = {}) {
  return Tensor::adopt(kp_full_like(t.raw(), v.v, o.o));
}
#define KP_OPERATOR(op, name, code) \
  inline Tensor operator op(const Tensor& a, const Tensor& b) { return a.name(b); } \
  inline Tensor operator op(const Tensor& a, Scalar b) { return Tensor::adopt(kp_scalar_op(code, a.raw(), b.v, 0)); } \
  inline Tensor operator op(Scalar a, const Tensor& b) { return Tensor::adopt(kp_scalar_op(code, b.raw(), a.v, 1)); }
KP_OPERATOR(+, add, 0)
KP_OPERATOR(-, sub, 1)
KP_OPERATOR(*, mul, 2)
KP_OPERATOR(/, div, 3)
#undef KP_OPERATOR
inline Tensor operator-(const Tensor& t) { return t.neg(); }
inline TensorOptions dtype(ScalarType t) { return TensorOptions(t); }
inline TensorOptions device(Device d) { return TensorOptions(d); }
using TensorList = c10::ArrayRef<Tensor>;
} }

namespace torch {
using namespace at;
using at::Tensor; using Dtype = at::ScalarType;
constexpr auto kUInt8 = at::kByte, kInt8 = at::kChar, kInt16 = at::kShort, kInt32 = at::kInt, kInt64 = at::kLong,
               kFloat16 = at::kHalf, kFloat32 = at::kFloat, kFloat64 = at::kDouble;
using std::nullopt; using std::optional;
}

namespace kpipe_shim {
template <class... A> std::string text(const A&... a) {
  if constexpr (sizeof...(A) == 0) return {};
  else { std::ostringstream s; (s << ... << a); return s.str(); }
}
}
inline std::ostream& operator<<(std::ostream& s, c10::IntArrayRef a) {
  s << "[";
  for (size_t i = 0; i < a.size(); i++) s << (i ? ", " : "") << a[i];
  return s << "]";
}

#define KP_CHECK(kind, condition, ...) \
  do { \
    if (!(condition)) { \
      auto kp_message = ::kpipe_shim::text(__VA_ARGS__); \
      if (kp_message.empty()) kp_message = "Expected " #condition " to be true, but got false."; \
      kp_throw(__func__, __FILE__, __LINE__, kp_message.c_str()); \
    } \
  } while (0)
#define TORCH_CHECK(condition, ...) KP_CHECK(0, condition __VA_OPT__(, ) __VA_ARGS__)
#define TORCH_INTERNAL_ASSERT(condition, ...) KP_CHECK(0, condition __VA_OPT__(, ) __VA_ARGS__)
#define AT_ASSERTM(condition, ...) KP_CHECK(0, condition __VA_OPT__(, ) __VA_ARGS__)
#define AT_ASSERT(condition) KP_CHECK(0, condition)
#define AT_ERROR(...) kp_throw(__func__, __FILE__, __LINE__, ::kpipe_shim::text(__VA_ARGS__).c_str())

#define KP_CASE(type, name, ...) \
  case at::ScalarType::name: { using scalar_t = type; return __VA_ARGS__(); }
#define KP_DISPATCH(TYPE, NAME, ...) \
  [&] { \
    const auto kp_type = (TYPE); \
    switch (kp_type) { \
      __VA_ARGS__ \
      default: kp_throw(__func__, __FILE__, __LINE__, (std::string(NAME) + " not implemented for this type").c_str()); \
    } \
  }()
#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) \
  KP_DISPATCH(TYPE, NAME, KP_CASE(double, Double, __VA_ARGS__) KP_CASE(float, Float, __VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(TYPE, NAME, ...) \
  KP_DISPATCH(TYPE, NAME, KP_CASE(uint8_t, Byte, __VA_ARGS__) KP_CASE(int8_t, Char, __VA_ARGS__) \
    KP_CASE(int16_t, Short, __VA_ARGS__) KP_CASE(int32_t, Int, __VA_ARGS__) KP_CASE(int64_t, Long, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(TYPE, NAME, ...) \
  KP_DISPATCH(TYPE, NAME, KP_CASE(double, Double, __VA_ARGS__) KP_CASE(float, Float, __VA_ARGS__) \
    KP_CASE(uint8_t, Byte, __VA_ARGS__) KP_CASE(int8_t, Char, __VA_ARGS__) KP_CASE(int16_t, Short, __VA_ARGS__) \
    KP_CASE(int32_t, Int, __VA_ARGS__) KP_CASE(int64_t, Long, __VA_ARGS__))

// Python's side: what pybind11 would do for functions of these types.
namespace kpipe_shim {
using at::Tensor;
template <class T, class = void> struct Convert;
template <> struct Convert<Tensor> {
  static bool get(PyObject* o, Tensor& t) { void* p; if (!kp_get_tensor(o, &p)) return false; t = Tensor::adopt(p); return true; }
  static PyObject* put(Tensor t) { return kp_put_tensor(t.give()); }
};
template <class T> struct Convert<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
  static bool get(PyObject* o, T& v) {
    int64_t x;
    if (!kp_get_int(o, &x)) return false;
    if constexpr (sizeof(T) < 8) {
      if (x < (int64_t)std::numeric_limits<T>::min() || x > (int64_t)std::numeric_limits<T>::max()) return false;
    } else if constexpr (std::is_unsigned_v<T>) {
      if (x < 0) return false;
    }
    v = (T)x;
    return true;
  }
  static PyObject* put(T v) { return kp_put_int((int64_t)v); }
};
template <class T> struct Convert<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static bool get(PyObject* o, T& v) { double x; if (!kp_get_double(o, &x)) return false; v = (T)x; return true; }
  static PyObject* put(T v) { return kp_put_double(v); }
};
template <> struct Convert<bool> {
  static bool get(PyObject* o, bool& v) { return kp_get_bool(o, &v); }
  static PyObject* put(bool v) { return kp_put_bool(v); }
};
template <> struct Convert<std::string> {
  static bool get(PyObject* o, std::string& v) {
    int64_t n; const char* s = kp_get_string(o, &n);
    if (!s) return false;
    v.assign(s, (size_t)n);
    return true;
  }
  static PyObject* put(const std::string& v) { return kp_put_string(v.data(), (int64_t)v.size()); }
};
template <class T> struct Convert<std::vector<T>> {
  static bool get(PyObject* o, std::vector<T>& v) {
    int64_t n = kp_length(o);
    if (n < 0) return false;
    for (int64_t i = 0; i < n; i++) { T x{}; if (!Convert<T>::get(kp_element(o, i), x)) return false; v.push_back(std::move(x)); }
    return true;
  }
  static PyObject* put(std::vector<T> v) {
    std::vector<PyObject*> out;
    for (auto&& x : v) out.push_back(Convert<T>::put(std::move(x)));
    return kp_put_sequence(out.data(), (int64_t)out.size(), 0);
  }
};
template <class T> struct Convert<std::optional<T>> {
  static bool get(PyObject* o, std::optional<T>& v) {
    if (kp_is_none(o)) { v.reset(); return true; }
    T x{};
    if (!Convert<T>::get(o, x)) return false;
    v = std::move(x);
    return true;
  }
  static PyObject* put(std::optional<T> v) { return v ? Convert<T>::put(std::move(*v)) : kp_put_none(); }
};
template <class... T> struct Convert<std::tuple<T...>> {
  static PyObject* put(std::tuple<T...> v) {
    return std::apply([](auto&... x) { PyObject* out[] = {Convert<T>::put(std::move(x))...}; return kp_put_sequence(out, sizeof...(T), 1); }, v);
  }
};
template <class A, class B> struct Convert<std::pair<A, B>> {
  static PyObject* put(std::pair<A, B> v) { return Convert<std::tuple<A, B>>::put(std::tuple<A, B>(std::move(v.first), std::move(v.second))); }
};

template <auto F, class S = decltype(F)> struct Bind;
template <auto F, class R, class... A> struct Bind<F, R (*)(A...)> {
  template <size_t... I> static PyObject* apply(PyObject* const* a, std::index_sequence<I...>) {
    std::tuple<std::decay_t<A>...> t{};
    if (!(Convert<std::decay_t<A>>::get(a[I], std::get<I>(t)) && ...)) return kp_arguments_error("function");
    if constexpr (std::is_void_v<R>) { F(static_cast<A>(std::get<I>(t))...); return kp_put_none(); }
    else return Convert<std::decay_t<R>>::put(F(static_cast<A>(std::get<I>(t))...));
  }
  static PyObject* call(PyObject*, PyObject* const* a, int64_t n) {
    if (n != (int64_t)sizeof...(A)) return kp_arguments_error("function");
    try { return apply(a, std::index_sequence_for<A...>{}); } catch (...) { return kp_raise_current(); }
  }
};
}
#define KP_FUNCTION(f) {#f, &kpipe_shim::Bind<&f>::call},
#define KP_EXPORT(name, ...) \
  extern "C" __attribute__((visibility("default"))) PyObject* PyInit_##name() { \
    static const kp_function functions[] = {__VA_ARGS__}; \
    return kp_module(#name, functions, sizeof(functions) / sizeof(*functions)); \
  }
#define KP_MODULE(name, ...) KP_EXPORT(name, __VA_ARGS__)
