// Value types that torch has in c10: dtypes, devices, options, scalars, array references.
//
// Functions that are no templates must not use templates in their bodies here: each kernel would instantiate them anew.
#pragma once
#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace c10 {
struct Half;
struct BFloat16;
}

namespace kpipe_shim {
namespace core {
using std::nullopt;
using std::nullopt_t;
using std::optional;

using DeviceIndex = int8_t;
enum class ScalarType : int8_t {
  Byte = 0, Char = 1, Short = 2, Int = 3, Long = 4, Half = 5, Float = 6, Double = 7, ComplexHalf = 8, ComplexFloat = 9,
  ComplexDouble = 10, Bool = 11, BFloat16 = 15, UInt16 = 27, UInt32 = 28, UInt64 = 29
};
enum class DeviceType : int8_t { CPU = 0, CUDA = 1, XPU = 12, MPS = 13, Meta = 14 };
enum class Layout : int8_t { Strided = 0, Sparse = 1 };
enum class MemoryFormat : int8_t { Contiguous = 0, Preserve = 1, ChannelsLast = 2, ChannelsLast3d = 3 };

constexpr auto kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short, kInt = ScalarType::Int,
               kLong = ScalarType::Long, kHalf = ScalarType::Half, kFloat = ScalarType::Float,
               kDouble = ScalarType::Double, kComplexFloat = ScalarType::ComplexFloat,
               kComplexDouble = ScalarType::ComplexDouble, kBool = ScalarType::Bool, kBFloat16 = ScalarType::BFloat16,
               kUInt16 = ScalarType::UInt16, kUInt32 = ScalarType::UInt32, kUInt64 = ScalarType::UInt64;
constexpr auto kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA, kXPU = DeviceType::XPU, kMPS = DeviceType::MPS,
               kMeta = DeviceType::Meta;
constexpr auto kStrided = Layout::Strided, kSparse = Layout::Sparse;

// The C++ type of a dtype, and back; types that are missing here are for the stock build.
template <ScalarType> struct CppTypeOf;
template <class T> struct DtypeOf;
#define KPIPE_SHIM_TYPES(_)                                                                                        \
  _(uint8_t, Byte) _(int8_t, Char) _(int16_t, Short) _(int32_t, Int) _(int64_t, Long) _(::c10::Half, Half)         \
  _(float, Float) _(double, Double) _(bool, Bool) _(::c10::BFloat16, BFloat16)
#define KPIPE_SHIM_TYPE(cpp, name)                                                     \
  template <> struct CppTypeOf<ScalarType::name> { using type = cpp; };                \
  template <> struct DtypeOf<cpp> { static constexpr ScalarType value = ScalarType::name; };
KPIPE_SHIM_TYPES(KPIPE_SHIM_TYPE)
#undef KPIPE_SHIM_TYPE

const char* toString(ScalarType);
size_t elementSize(ScalarType);
bool isFloatingType(ScalarType);
bool isIntegralType(ScalarType, bool includeBool);

struct Text {  // stands for c10::string_view
  const char* data;
  size_t size;
  Text(const char* s) : data(s), size(std::strlen(s)) {}
  template <class S, class = decltype(std::declval<const S&>().substr(0))> Text(const S& s) : data(s.data()), size(s.size()) {}
};

struct TypeMeta {
  ScalarType type;
  explicit TypeMeta(ScalarType t) : type(t) {}
  ScalarType toScalarType() const { return type; }
  size_t itemsize() const { return elementSize(type); }
  friend bool operator==(TypeMeta a, TypeMeta b) { return a.type == b.type; }
  friend bool operator!=(TypeMeta a, TypeMeta b) { return a.type != b.type; }
  friend bool operator==(TypeMeta a, ScalarType b) { return a.type == b; }
  friend bool operator!=(TypeMeta a, ScalarType b) { return a.type != b; }
  friend bool operator==(ScalarType a, TypeMeta b) { return a == b.type; }
  friend bool operator!=(ScalarType a, TypeMeta b) { return a != b.type; }
};
inline ScalarType typeMetaToScalarType(TypeMeta t) { return t.type; }

struct Device {
  Device(DeviceType type, DeviceIndex index = -1) : type_(type), index_(index) {}
  explicit Device(Text name);
  DeviceType type() const { return type_; }
  DeviceIndex index() const { return index_; }
  bool has_index() const { return index_ != -1; }
  bool is_cpu() const { return type_ == DeviceType::CPU; }
  bool is_cuda() const { return type_ == DeviceType::CUDA; }
  bool operator==(const Device& o) const { return type_ == o.type_ && index_ == o.index_; }
  bool operator!=(const Device& o) const { return !(*this == o); }

 private:
  DeviceType type_;
  DeviceIndex index_;
};

[[noreturn]] void no_such_element(size_t i, size_t size);
[[noreturn]] void no_such_slice(size_t from, size_t n, size_t size);

template <class T> class ArrayRef {
  const T* data_ = nullptr;
  size_t size_ = 0;

 public:
  using value_type = T;
  using iterator = const T*;
  constexpr ArrayRef() = default;
  constexpr ArrayRef(const T& one) : data_(&one), size_(1) {}
  constexpr ArrayRef(const T* data, size_t size) : data_(data), size_(size) {}
  constexpr ArrayRef(const T* begin, const T* end) : data_(begin), size_(end - begin) {}
  template <class A> ArrayRef(const std::vector<T, A>& v) : data_(v.data()), size_(v.size()) {
    static_assert(!std::is_same_v<T, bool>, "ArrayRef<bool> cannot refer to a std::vector<bool>");
  }
  template <size_t N> constexpr ArrayRef(const std::array<T, N>& a) : data_(a.data()), size_(N) {}
  template <size_t N> constexpr ArrayRef(const T (&a)[N]) : data_(a), size_(N) {}
  constexpr ArrayRef(const std::initializer_list<T>& l) : data_(l.begin()), size_(l.size()) {}
  constexpr const T* begin() const { return data_; }
  constexpr const T* end() const { return data_ + size_; }
  constexpr const T* data() const { return data_; }
  constexpr size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr const T& operator[](size_t i) const { return data_[i]; }
  const T& front() const { return at(0); }
  const T& back() const { return at(size_ - 1); }
  const T& at(size_t i) const {
    if (i >= size_) no_such_element(i, size_);
    return data_[i];
  }
  ArrayRef slice(size_t from, size_t n) const {
    if (from + n > size_) no_such_slice(from, n, size_);
    return {data_ + from, n};
  }
  ArrayRef slice(size_t from) const { return slice(from, size_ - from); }
  std::vector<T> vec() const { return std::vector<T>(begin(), end()); }
  bool equals(ArrayRef o) const { return size_ == o.size_ && std::equal(begin(), end(), o.begin()); }
};
template <class T> bool operator==(ArrayRef<T> a, ArrayRef<T> b) { return a.equals(b); }
template <class T> bool operator!=(ArrayRef<T> a, ArrayRef<T> b) { return !a.equals(b); }
template <class T> bool operator==(const std::vector<T>& a, ArrayRef<T> b) { return ArrayRef<T>(a).equals(b); }
template <class T> bool operator!=(const std::vector<T>& a, ArrayRef<T> b) { return !ArrayRef<T>(a).equals(b); }
template <class T> bool operator==(ArrayRef<T> a, const std::vector<T>& b) { return a.equals(b); }
template <class T> bool operator!=(ArrayRef<T> a, const std::vector<T>& b) { return !a.equals(b); }
using IntArrayRef = ArrayRef<int64_t>;

template <class T> class OptionalArrayRef {
  std::optional<ArrayRef<T>> held_;

 public:
  constexpr OptionalArrayRef() = default;
  constexpr OptionalArrayRef(std::nullopt_t) {}
  constexpr OptionalArrayRef(const T& one) : held_(one) {}
  constexpr OptionalArrayRef(const std::optional<ArrayRef<T>>& o) : held_(o) {}
  constexpr OptionalArrayRef(const std::initializer_list<T>& l) : held_(ArrayRef<T>(l)) {}
  template <class U, std::enable_if_t<!std::is_same_v<std::decay_t<U>, OptionalArrayRef> &&
                                          std::is_convertible_v<U&&, ArrayRef<T>> && !std::is_convertible_v<U&&, T>, int> = 0>
  constexpr OptionalArrayRef(U&& u) : held_(ArrayRef<T>(std::forward<U>(u))) {}
  bool has_value() const { return held_.has_value(); }
  explicit operator bool() const { return held_.has_value(); }
  const ArrayRef<T>& value() const { return held_.value(); }
  const ArrayRef<T>& operator*() const { return *held_; }
};
using OptionalIntArrayRef = OptionalArrayRef<int64_t>;

class Scalar {
 public:
  enum class Kind : int8_t { Int, Double, Bool };
  Scalar() : Scalar(0) {}
  Scalar(bool v) : kind(Kind::Bool), i(v), d(0) {}
#define KPIPE_SHIM_SCALAR(type, Name, member, other) Scalar(type v) : kind(Kind::Name), member(v), other(0) {}
  KPIPE_SHIM_SCALAR(signed char, Int, i, d)
  KPIPE_SHIM_SCALAR(unsigned char, Int, i, d)
  KPIPE_SHIM_SCALAR(short, Int, i, d)
  KPIPE_SHIM_SCALAR(unsigned short, Int, i, d)
  KPIPE_SHIM_SCALAR(int, Int, i, d)
  KPIPE_SHIM_SCALAR(unsigned int, Int, i, d)
  KPIPE_SHIM_SCALAR(long, Int, i, d)
  KPIPE_SHIM_SCALAR(unsigned long, Int, i, d)
  KPIPE_SHIM_SCALAR(long long, Int, i, d)
  KPIPE_SHIM_SCALAR(unsigned long long, Int, i, d)
  KPIPE_SHIM_SCALAR(float, Double, d, i)
  KPIPE_SHIM_SCALAR(double, Double, d, i)
#undef KPIPE_SHIM_SCALAR
  template <class T, std::enable_if_t<std::is_same_v<T, ::c10::Half> || std::is_same_v<T, ::c10::BFloat16>, int> = 0>
  Scalar(T v) : Scalar(static_cast<float>(v)) {}
  template <class T> T to() const { T v; read(&v, DtypeOf<T>::value); return v; }
  float toFloat() const;
  double toDouble() const;
  int toInt() const;
  int64_t toLong() const;
  bool toBool() const;
  bool isFloatingPoint() const { return kind == Kind::Double; }
  bool isBoolean() const { return kind == Kind::Bool; }
  bool isIntegral(bool includeBool) const { return kind == Kind::Int || (includeBool && kind == Kind::Bool); }
  ScalarType type() const { return kind == Kind::Double ? kDouble : kind == Kind::Bool ? kBool : kLong; }

  Kind kind;
  int64_t i = 0;
  double d = 0;

 private:
  void read(void* out, ScalarType) const;
};

class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(Layout);
  template <class... A, std::enable_if_t<std::is_constructible_v<Device, A&&...> && sizeof...(A) != 0, int> = 0>
  TensorOptions(A&&... a) { set(Device(std::forward<A>(a)...)); }
  TensorOptions(TypeMeta);
  TensorOptions(ScalarType);
  TensorOptions(MemoryFormat);

  [[nodiscard]] TensorOptions device(std::optional<Device>) const;
  template <class... A> [[nodiscard]] TensorOptions device(A&&... a) const {
    return device(std::optional<Device>(std::in_place, std::forward<A>(a)...));
  }
  [[nodiscard]] TensorOptions device_index(DeviceIndex) const;
  [[nodiscard]] TensorOptions dtype(std::optional<TypeMeta>) const;
  [[nodiscard]] TensorOptions dtype(std::optional<ScalarType>) const;
  template <class T> TensorOptions& dtype() { dtype_ = DtypeOf<T>::value; has_dtype_ = true; return *this; }
  [[nodiscard]] TensorOptions layout(std::optional<Layout>) const;
  [[nodiscard]] TensorOptions requires_grad(std::optional<bool>) const;
  [[nodiscard]] TensorOptions pinned_memory(std::optional<bool>) const;
  [[nodiscard]] TensorOptions memory_format(std::optional<MemoryFormat>) const;

  Device device() const { return device_; }
  DeviceIndex device_index() const { return device_.index(); }
  TypeMeta dtype() const;
  Layout layout() const { return layout_; }
  bool requires_grad() const { return requires_grad_; }
  bool pinned_memory() const { return pinned_memory_; }
  bool has_device() const { return has_device_; }
  bool has_dtype() const { return has_dtype_; }
  bool has_layout() const { return has_layout_; }
  bool has_requires_grad() const { return has_requires_grad_; }
  bool has_pinned_memory() const { return has_pinned_memory_; }
  bool has_memory_format() const { return has_memory_format_; }
  MemoryFormat memory_format_given() const { return memory_format_; }

 private:
  void set(Device);
  Device device_ = kCPU;
  ScalarType dtype_ = kFloat;
  Layout layout_ = kStrided;
  MemoryFormat memory_format_ = MemoryFormat::Contiguous;
  bool requires_grad_ = false, pinned_memory_ = false;
  bool has_device_ = false, has_dtype_ = false, has_layout_ = false, has_requires_grad_ = false,
       has_pinned_memory_ = false, has_memory_format_ = false;
};
TensorOptions dtype(TypeMeta);
TensorOptions dtype(ScalarType);
template <class T> TensorOptions dtype() { return TensorOptions(DtypeOf<T>::value); }
TensorOptions device(Device);
TensorOptions layout(Layout);
TensorOptions requires_grad(bool = true);
TensorOptions memory_format(MemoryFormat);

template <class I> struct IntegerRange {
  struct iterator {
    I value;
    I operator*() const { return value; }
    iterator& operator++() { ++value; return *this; }
    bool operator!=(const iterator& o) const { return value != o.value; }
  };
  I first, last;
  iterator begin() const { return {first}; }
  iterator end() const { return {last}; }
};
template <class A, class B> IntegerRange<B> irange(A first, B last) {
  return {static_cast<B>(first), std::max(static_cast<B>(first), last)};
}
template <class I> IntegerRange<I> irange(I last) { return {I(), std::max(I(), last)}; }
}  // namespace core
using namespace core;
namespace Reduction { enum Reduction { None, Mean, Sum, END }; }
}  // namespace kpipe_shim
