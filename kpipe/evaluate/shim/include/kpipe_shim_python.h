// What pybind11 does for torch's extensions: functions of a module, their arguments and results.
#pragma once
#include <kpipe_shim_check.h>
#ifdef KPIPE_SHIM_FULL
#include <string>
#endif

typedef struct _object PyObject;

namespace kpipe_shim::internals {
// One specialization for each type that may cross; a type that has none is for the stock build. All but the
// containers are defined in the runtime library, by torch's and pybind11's own converters.
template <class T> struct Convert;
#define KPIPE_SHIM_CONVERTED(_)                                                                                        \
  _(bool, "bool") _(signed char, "int") _(unsigned char, "int") _(short, "int") _(unsigned short, "int") _(int, "int") \
  _(unsigned int, "int") _(long, "int") _(unsigned long, "int") _(long long, "int") _(unsigned long long, "int")       \
  _(float, "float") _(double, "float") _(Tensor, "torch.Tensor") _(ScalarType, "torch.dtype") _(Device, "torch.device")
#define KPIPE_SHIM_CONVERT(type, shown)   \
  template <> struct Convert<type> {      \
    static bool load(PyObject*, type&);   \
    static PyObject* cast(const type&);   \
    static void name(Message&);           \
  };
KPIPE_SHIM_CONVERTED(KPIPE_SHIM_CONVERT)
#undef KPIPE_SHIM_CONVERT

struct Items {  // the elements of a Python sequence
  PyObject* sequence;
  PyObject* const* data;
  int64_t size;
  explicit Items(PyObject*);  // size < 0: it is none
  ~Items();
};
PyObject* make_sequence(PyObject* const* items, int64_t size, bool tuple);  // takes the items over; null if one is null
PyObject* none();
bool is_none(PyObject*);

template <class T> struct Initial { T value{}; };  // something to load into
template <> struct Initial<Device> { Device value{kCPU}; };

template <class T> struct Convert<std::vector<T>> {
  static bool load(PyObject* o, std::vector<T>& out) {
    Items items(o);
    if (items.size < 0) return false;
    out.reserve(items.size);
    for (int64_t i = 0; i < items.size; i++) {
      Initial<T> one;
      if (!Convert<T>::load(items.data[i], one.value)) return false;
      out.push_back(std::move(one.value));
    }
    return true;
  }
  static PyObject* cast(const std::vector<T>& v) {
    std::vector<PyObject*> items;
    for (const auto& one : v) items.push_back(Convert<T>::cast(one));
    return make_sequence(items.data(), static_cast<int64_t>(items.size()), false);
  }
  static void name(Message& m) { m.put("list["); Convert<T>::name(m); m.put("]"); }
};
template <class T> struct Convert<std::optional<T>> {
  static bool load(PyObject* o, std::optional<T>& out) {
    if (is_none(o)) return true;
    Initial<T> one;
    if (!Convert<T>::load(o, one.value)) return false;
    out = std::move(one.value);
    return true;
  }
  static PyObject* cast(const std::optional<T>& v) { return v ? Convert<T>::cast(*v) : none(); }
  static void name(Message& m) { m.put("Optional["); Convert<T>::name(m); m.put("]"); }
};
template <class... T> struct Convert<std::tuple<T...>> {
  static PyObject* cast(const std::tuple<T...>& v) { return cast(v, std::index_sequence_for<T...>{}); }
  template <size_t... I> static PyObject* cast(const std::tuple<T...>& v, std::index_sequence<I...>) {
    PyObject* items[] = {Convert<T>::cast(std::get<I>(v))..., nullptr};
    return make_sequence(items, sizeof...(T), true);
  }
};
template <class A, class B> struct Convert<std::pair<A, B>> {
  static PyObject* cast(const std::pair<A, B>& v) {
    PyObject* items[] = {Convert<A>::cast(v.first), Convert<B>::cast(v.second)};
    return make_sequence(items, 2, true);
  }
};
#ifdef KPIPE_SHIM_FULL
PyObject* cast_text(const char*, size_t);
bool load_text(PyObject*, void* context, void (*take)(void* context, const char*, size_t));
template <> struct Convert<std::string> {
  static bool load(PyObject* o, std::string& out) {
    return load_text(o, &out, [](void* s, const char* data, size_t n) { static_cast<std::string*>(s)->assign(data, n); });
  }
  static PyObject* cast(const std::string& v) { return cast_text(v.data(), v.size()); }
  static void name(Message& m) { m.put("str"); }
};
#endif

struct Definition {
  const char *name, *doc;
  int64_t arity;
  PyObject* (*call)(PyObject* const*);  // null without an exception: the arguments do not fit
  void (*signature)(Message&);
};

template <class T> using Plain = std::remove_cv_t<std::remove_reference_t<T>>;
template <size_t I, class T> struct Slot : Initial<T> {};
template <class I, class... T> struct Slots;
template <size_t... I, class... T> struct Slots<std::index_sequence<I...>, T...> : Slot<I, T>... {};
template <size_t I, class T> T& value_of(Slot<I, T>& slot) { return slot.value; }

template <auto F, class S = decltype(F)> struct Bound;
template <auto F, class R, class... A> struct Bound<F, R (*)(A...)> {
  using Indices = std::index_sequence_for<A...>;
  template <size_t... I> static PyObject* apply(PyObject* const* a, std::index_sequence<I...>) {
    Slots<Indices, Plain<A>...> slots;
    (void)slots;
    if (!(Convert<Plain<A>>::load(a[I], value_of<I>(slots)) && ...)) return nullptr;
    if constexpr (std::is_void_v<R>) return F(static_cast<A>(value_of<I>(slots))...), none();
    else return Convert<Plain<R>>::cast(F(static_cast<A>(value_of<I>(slots))...));
  }
  static PyObject* call(PyObject* const* a) { return apply(a, Indices{}); }
  static void signature(Message& m) {
    int n = 0;
    ((m.put(n ? ", arg" : "arg"), m.put(n++), m.put(": "), Convert<Plain<A>>::name(m)), ...);
  }
  static constexpr Definition definition(const char* name, const char* doc) {
    return {name, doc, sizeof...(A), &call, &signature};
  }
};
PyObject* make_module(const char* name, const Definition*, int64_t n);
}  // namespace kpipe_shim::internals

#define KPIPE_SHIM_FUNCTION(f, doc) ::kpipe_shim::internals::Bound<&f>::definition(#f, doc),
#define KPIPE_SHIM_MODULE(name, ...) KPIPE_SHIM_INIT(name, __VA_ARGS__)
#define KPIPE_SHIM_INIT(name, ...)                                                                \
  extern "C" __attribute__((visibility("default"))) PyObject* PyInit_##name() {                   \
    static const ::kpipe_shim::internals::Definition functions[] = {__VA_ARGS__};                            \
    return ::kpipe_shim::internals::make_module(#name, functions, sizeof(functions) / sizeof(*functions));   \
  }
