// Definitions for kpipe_shim_python.h, by torch's and pybind11's own converters.
#pragma once

namespace kpipe_shim {
namespace internals {
namespace py = pybind11;
template <class T> bool load_plain(PyObject* o, T& out) {
  py::detail::make_caster<T> caster;
  if (!caster.load(o, true)) return false;
  out = py::detail::cast_op<T>(caster);
  return true;
}
template <class T> PyObject* cast_plain(const T& v) {
  return py::detail::make_caster<T>::cast(v, py::return_value_policy::move, py::handle()).ptr();
}
#define KPIPE_SHIM_PLAIN(_)                                                                                         \
  _(bool) _(signed char) _(unsigned char) _(short) _(unsigned short) _(int) _(unsigned int) _(long)                 \
  _(unsigned long) _(long long) _(unsigned long long) _(float) _(double)
#define KPIPE_SHIM_DEFINE(type)                                                           \
  bool Convert<type>::load(PyObject* o, type& out) { return load_plain<type>(o, out); }   \
  PyObject* Convert<type>::cast(const type& v) { return cast_plain<type>(v); }
KPIPE_SHIM_PLAIN(KPIPE_SHIM_DEFINE)
#define KPIPE_SHIM_TORCH(type)                                                            \
  bool Convert<type>::load(PyObject* o, type& out) {                                      \
    std::decay_t<decltype(real(out))> v = real(out);                                      \
    if (!load_plain(o, v)) return false;                                                  \
    out = shim(std::move(v));                                                             \
    return true;                                                                          \
  }                                                                                       \
  PyObject* Convert<type>::cast(const type& v) { return cast_plain(real(v)); }
#define KPIPE_SHIM_NAME(type, shown) void Convert<type>::name(Message& m) { m.put(shown); }
KPIPE_SHIM_CONVERTED(KPIPE_SHIM_NAME)
KPIPE_SHIM_TORCH(Tensor) KPIPE_SHIM_TORCH(ScalarType) KPIPE_SHIM_TORCH(Device)

Items::Items(PyObject* o) : sequence(nullptr), data(nullptr), size(-1) {
  if (!py::detail::object_is_convertible_to_std_vector(o)) return;
  sequence = PySequence_List(o);
  if (!sequence) throw py::error_already_set();
  data = PySequence_Fast_ITEMS(sequence);
  size = PyList_GET_SIZE(sequence);
}
Items::~Items() { Py_XDECREF(sequence); }
PyObject* make_sequence(PyObject* const* items, int64_t size, bool tuple) {
  PyObject* out = tuple ? PyTuple_New(size) : PyList_New(size);
  bool whole = out != nullptr;
  for (int64_t i = 0; i < size; i++) {
    whole = whole && items[i];
    if (!out) Py_XDECREF(items[i]);
    else if (tuple) PyTuple_SET_ITEM(out, i, items[i]);
    else PyList_SET_ITEM(out, i, items[i]);
  }
  if (whole) return out;
  Py_XDECREF(out);
  throw py::error_already_set();
}
PyObject* none() { Py_RETURN_NONE; }
bool is_none(PyObject* o) { return o == Py_None; }
bool load_text(PyObject* o, void* context, void (*take)(void*, const char*, size_t)) {
  std::string text;
  if (!load_plain(o, text)) return false;
  take(context, text.data(), text.size());
  return true;
}
PyObject* cast_text(const char* s, size_t n) { return cast_plain(std::string(s, n)); }

static PyObject* misfit(const Definition& f, PyObject* const* args, Py_ssize_t n) {
  Message m;
  m.put(f.name);
  m.put("(): incompatible function arguments. The following argument types are supported:\n    1. (");
  f.signature(m);
  m.put(")\n\nInvoked with: ");
  for (Py_ssize_t i = 0; i < n; i++) {
    m.put(i ? ", " : "");
    m.put(py::repr(args[i]).cast<std::string>());
  }
  m.raise(ErrorKind::Type, {f.name, "", 0});
}
static PyObject* dispatch(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  HANDLE_TH_ERRORS
  const auto& f = *static_cast<const Definition*>(PyCapsule_GetPointer(self, nullptr));
  PyObject* result = n == f.arity ? f.call(args) : nullptr;
  if (!result && !PyErr_Occurred()) misfit(f, args, n);
  return result;
  END_HANDLE_TH_ERRORS
}
PyObject* make_module(const char* name, const Definition* functions, int64_t n) {
  auto* definition = new PyModuleDef{PyModuleDef_HEAD_INIT, name, nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  auto module = py::reinterpret_steal<py::object>(PyModule_Create(definition));
  if (!module) return nullptr;
  auto* methods = new PyMethodDef[n];  // lives as long as the process, as the module's code does
  for (int64_t i = 0; i < n; i++) {
    auto call = reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&dispatch));
    methods[i] = {functions[i].name, call, METH_FASTCALL, functions[i].doc};
    py::capsule self(const_cast<Definition*>(&functions[i]));
    auto function = py::reinterpret_steal<py::object>(PyCFunction_NewEx(&methods[i], self.ptr(), module.attr("__name__").ptr()));
    if (!function || PyObject_SetAttrString(module.ptr(), functions[i].name, function.ptr()) != 0) return nullptr;
  }
  return module.release().ptr();
}
}  // namespace internals
}  // namespace kpipe_shim
