// TORCH_CHECK and its relatives, and AT_DISPATCH.
#pragma once
#include <kpipe_shim_tensor.h>
#ifdef KPIPE_SHIM_FULL
#include <sstream>
#endif

namespace kpipe_shim::internals {
struct Place {
  const char *function, *file;
  int line;
};
enum class ErrorKind : int8_t { Error, Index, Value, Type, NotImplemented };

#ifdef KPIPE_SHIM_FULL
template <class T, class = void> struct Streams : std::false_type {};
template <class T>
struct Streams<T, std::void_t<decltype(std::declval<std::ostream&>() << std::declval<const T&>())>> : std::true_type {};
#endif

class Message {  // what is put together when a check has failed
  void* text_;
  void add(const char*, size_t);
  void add(char);
  void add(long long);
  void add(unsigned long long);
  void add(double);
  void add(const void*);
  void add(IntArrayRef);
  void add(ScalarType);
  void add(TypeMeta);
  void add(const Device&);
  void add(DeviceType);
  void add(const Scalar&);
  void add(const Tensor&);

 public:
  Message();
  ~Message();
  void put(const char*);
  template <class T> void put(const T& v) {
    if constexpr (std::is_integral_v<T>) {
      if constexpr (sizeof(T) == 1 && !std::is_same_v<T, bool>) add(static_cast<char>(v));
      else if constexpr (std::is_unsigned_v<T>) add(static_cast<unsigned long long>(v));
      else add(static_cast<long long>(v));
    } else if constexpr (std::is_floating_point_v<T>) {
      add(static_cast<double>(v));
    } else if constexpr (std::is_convertible_v<const T&, const char*>) {
      put(static_cast<const char*>(v));
    } else if constexpr (std::is_pointer_v<T>) {
      add(static_cast<const void*>(v));
    }
#ifdef KPIPE_SHIM_FULL
    else if constexpr (std::is_convertible_v<const T&, std::string>) {
      const std::string& s = v;
      add(s.data(), s.size());
    } else if constexpr (Streams<T>::value) {
      std::ostringstream stream;
      stream << v;
      put(stream.str());
    }
#endif
    else {
      add(v);
    }
  }
  [[noreturn]] void raise(ErrorKind, Place) const;
  [[noreturn]] void raise_assertion(const char* condition, Place) const;
  void warn(Place) const;
};

template <class... A> [[noreturn, gnu::cold, gnu::noinline]] void fail(ErrorKind kind, Place place, const char* usual, const A&... a) {
  Message m;
  if constexpr (sizeof...(A) == 0) m.put(usual);
  else (m.put(a), ...);
  m.raise(kind, place);
}
template <class... A> [[noreturn, gnu::cold, gnu::noinline]] void fail_assertion(const char* condition, Place place, const A&... a) {
  Message m;
  (m.put(a), ...);
  m.raise_assertion(condition, place);
}
template <class... A> [[gnu::cold, gnu::noinline]] void warn(Place place, const A&... a) {
  Message m;
  (m.put(a), ...);
  m.warn(place);
}
}  // namespace kpipe_shim::internals

#ifndef KPIPE_SHIM_RUNTIME
#define KPIPE_SHIM_PLACE (::kpipe_shim::internals::Place{__func__, __FILE__, __LINE__})
#define KPIPE_SHIM_CHECK(kind, condition, ...)                                                                     \
  if (__builtin_expect(!(condition), 0)) {                                                                         \
    ::kpipe_shim::internals::fail(::kpipe_shim::internals::ErrorKind::kind, KPIPE_SHIM_PLACE,                                            \
                       "Expected " #condition " to be true, but got false.  (Could this error message be improved?" \
                       "  If so, please report an enhancement request to PyTorch.)", ##__VA_ARGS__);               \
  }
#define TORCH_CHECK(condition, ...) KPIPE_SHIM_CHECK(Error, condition, ##__VA_ARGS__)
#define TORCH_CHECK_INDEX(condition, ...) KPIPE_SHIM_CHECK(Index, condition, ##__VA_ARGS__)
#define TORCH_CHECK_VALUE(condition, ...) KPIPE_SHIM_CHECK(Value, condition, ##__VA_ARGS__)
#define TORCH_CHECK_TYPE(condition, ...) KPIPE_SHIM_CHECK(Type, condition, ##__VA_ARGS__)
#define TORCH_CHECK_NOT_IMPLEMENTED(condition, ...) KPIPE_SHIM_CHECK(NotImplemented, condition, ##__VA_ARGS__)
#define TORCH_INTERNAL_ASSERT(condition, ...)                                        \
  if (__builtin_expect(!(condition), 0)) {                                           \
    ::kpipe_shim::internals::fail_assertion(#condition, KPIPE_SHIM_PLACE, ##__VA_ARGS__);       \
  }
#define AT_ASSERT(...) do { TORCH_INTERNAL_ASSERT(__VA_ARGS__); } while (false)
#define AT_ASSERTM(condition, ...) do { TORCH_CHECK(condition, ##__VA_ARGS__); } while (false)
#define AT_ERROR(...) do { TORCH_CHECK(false, ##__VA_ARGS__); } while (false)
#define TORCH_WARN(...) ::kpipe_shim::internals::warn(KPIPE_SHIM_PLACE, __VA_ARGS__);

#define AT_DISPATCH_SWITCH(TYPE, NAME, ...)                                                                      \
  [&] {                                                                                                          \
    constexpr const char* at_dispatch_name = NAME;                                                               \
    const ::kpipe_shim::ScalarType _st = (TYPE);                                                                 \
    switch (_st) {                                                                                               \
      __VA_ARGS__                                                                                                \
      default:                                                                                                   \
        ::kpipe_shim::internals::fail(::kpipe_shim::internals::ErrorKind::NotImplemented, KPIPE_SHIM_PLACE, "", '"', at_dispatch_name, \
                           "\" not implemented for '", ::kpipe_shim::toString(_st), "'");                        \
    }                                                                                                            \
  }()
#define AT_PRIVATE_CASE_TYPE_USING_HINT(enum_type, HINT, ...)                          \
  case enum_type: {                                                                    \
    using HINT [[maybe_unused]] = typename ::kpipe_shim::CppTypeOf<enum_type>::type;   \
    return __VA_ARGS__();                                                              \
  }
#define AT_DISPATCH_CASE(enum_type, ...) AT_PRIVATE_CASE_TYPE_USING_HINT(enum_type, scalar_t, __VA_ARGS__)
#include <kpipe_shim_dispatch.inc>
#endif
