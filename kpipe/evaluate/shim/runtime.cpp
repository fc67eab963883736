// libkpipe_shim: what the shim's headers declare, over the real torch. Built once per torch, Python and compiler.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#ifdef KPIPE_SHIM_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include <sstream>

#define KPIPE_SHIM_RUNTIME
#define KPIPE_SHIM_FULL
#pragma GCC visibility push(default)
#include "kpipe_shim_python.h"
#ifdef KPIPE_SHIM_CUDA
#include "kpipe_shim_cuda.h"
#endif

namespace kpipe_shim {
namespace {
// real(x): the torch object behind one of the shim's. A Tensor is laid out as the real one, so it is that one.
static_assert(sizeof(Tensor) == sizeof(at::Tensor) && sizeof(void*) == sizeof(at::Tensor));
#define KPIPE_SHIM_SAME(cpp, name) static_assert(static_cast<int>(ScalarType::name) == static_cast<int>(at::ScalarType::name));
KPIPE_SHIM_TYPES(KPIPE_SHIM_SAME)
static_assert(static_cast<int>(ScalarType::UInt64) == static_cast<int>(at::ScalarType::UInt64));
static_assert(static_cast<int>(DeviceType::Meta) == static_cast<int>(at::DeviceType::Meta));
static_assert(static_cast<int>(MemoryFormat::ChannelsLast3d) == static_cast<int>(at::MemoryFormat::ChannelsLast3d));
static_assert(static_cast<int>(Reduction::Sum) == static_cast<int>(at::Reduction::Sum));

const at::Tensor& real(const Tensor& t) { return reinterpret_cast<const at::Tensor&>(t); }
at::Tensor& real(Tensor& t) { return reinterpret_cast<at::Tensor&>(t); }
at::TensorList real(TensorList l) { return {reinterpret_cast<const at::Tensor*>(l.data()), l.size()}; }
at::IntArrayRef real(IntArrayRef a) { return {a.data(), a.size()}; }
at::OptionalIntArrayRef real(OptionalIntArrayRef a) { return a ? at::OptionalIntArrayRef(real(*a)) : std::nullopt; }
at::ScalarType real(ScalarType t) { return static_cast<at::ScalarType>(t); }
at::MemoryFormat real(MemoryFormat f) { return static_cast<at::MemoryFormat>(f); }
at::Device real(Device d) { return {static_cast<at::DeviceType>(d.type()), d.index()}; }
c10::string_view real(Text t) { return {t.data, t.size}; }
int64_t real(int64_t v) { return v; }
double real(double v) { return v; }
bool real(bool v) { return v; }
at::Scalar real(const Scalar& s) {
  return s.isFloatingPoint() ? at::Scalar(s.d) : s.isBoolean() ? at::Scalar(s.i != 0) : at::Scalar(s.i);
}
template <class T> auto real(const std::optional<T>& o) {
  using R = std::decay_t<decltype(real(*o))>;
  return o ? std::optional<R>(real(*o)) : std::nullopt;
}
at::TensorOptions real(TensorOptions o) {
  at::TensorOptions out;
  if (o.has_device()) out = out.device(real(o.device()));
  if (o.has_dtype()) out = out.dtype(real(o.dtype().type));
  if (o.has_layout()) out = out.layout(static_cast<at::Layout>(o.layout()));
  if (o.has_requires_grad()) out = out.requires_grad(o.requires_grad());
  if (o.has_pinned_memory()) out = out.pinned_memory(o.pinned_memory());
  if (o.has_memory_format()) out = out.memory_format(real(o.memory_format_given()));
  return out;
}

// shim(x): the other way.
Tensor shim(at::Tensor t) { return reinterpret_cast<Tensor&&>(t); }
ScalarType shim(at::ScalarType t) { return static_cast<ScalarType>(t); }
Device shim(at::Device d) { return {static_cast<DeviceType>(d.type()), d.index()}; }
int64_t shim(int64_t v) { return v; }
double shim(double v) { return v; }
bool shim(bool v) { return v; }
Scalar shim(const at::Scalar& s) {
  return s.isFloatingPoint() ? Scalar(s.toDouble()) : s.isBoolean() ? Scalar(s.toBool()) : Scalar(s.toLong());
}
template <class... T> auto shim(std::tuple<T...>&& t) {
  return std::apply([](auto&&... x) { return std::make_tuple(shim(std::move(x))...); }, std::move(t));
}
std::vector<Tensor> shim(std::vector<at::Tensor>&& l) {
  std::vector<Tensor> out;
  for (auto& t : l) out.push_back(shim(std::move(t)));
  return out;
}

template <class F> void for_dtype(ScalarType t, F&& f) {
  switch (t) {
#define KPIPE_SHIM_CASE(cpp, name) case ScalarType::name: f(cpp()); break;
    KPIPE_SHIM_TYPES(KPIPE_SHIM_CASE)
#undef KPIPE_SHIM_CASE
    default: TORCH_CHECK(false, "dtype ", real(t), " is not supported here");
  }
}
}  // namespace

#include "kpipe_shim_definitions.inc"

#define KPIPE_SHIM_OPERATOR(op)                                                                           \
  Tensor operator op(const Tensor& a, const Tensor& b) { return shim(real(a) op real(b)); }               \
  Tensor operator op(const Tensor& a, const Scalar& b) { return shim(real(a) op real(b)); }               \
  Tensor operator op(const Scalar& a, const Tensor& b) { return shim(real(a) op real(b)); }
KPIPE_SHIM_OPERATORS(KPIPE_SHIM_OPERATOR)

namespace core {
const char* toString(ScalarType t) { return c10::toString(real(t)); }
size_t elementSize(ScalarType t) { return c10::elementSize(real(t)); }
bool isFloatingType(ScalarType t) { return c10::isFloatingType(real(t)); }
bool isIntegralType(ScalarType t, bool with_bool) { return c10::isIntegralType(real(t), with_bool); }
Device::Device(Text name) : Device(shim(at::Device(std::string(name.data, name.size)))) {}
float Scalar::toFloat() const { return real(*this).toFloat(); }
double Scalar::toDouble() const { return real(*this).toDouble(); }
int Scalar::toInt() const { return real(*this).toInt(); }
int64_t Scalar::toLong() const { return real(*this).toLong(); }
bool Scalar::toBool() const { return real(*this).toBool(); }

TypeMeta TensorOptions::dtype() const {
  return TypeMeta(has_dtype_ ? dtype_ : shim(c10::get_default_dtype_as_scalartype()));
}
void TensorOptions::set(Device d) { device_ = d; has_device_ = true; }
TensorOptions::TensorOptions(Layout l) : layout_(l), has_layout_(true) {}
TensorOptions::TensorOptions(TypeMeta t) : dtype_(t.type), has_dtype_(true) {}
TensorOptions::TensorOptions(ScalarType t) : dtype_(t), has_dtype_(true) {}
TensorOptions::TensorOptions(MemoryFormat f) : memory_format_(f), has_memory_format_(true) {}
#define KPIPE_SHIM_OPTION(name, type)                                  \
  TensorOptions TensorOptions::name(std::optional<type> given) const { \
    auto out = *this;                                                  \
    out.has_##name##_ = given.has_value();                             \
    out.name##_ = given ? *given : TensorOptions().name##_;            \
    return out;                                                        \
  }
KPIPE_SHIM_OPTION(device, Device)
KPIPE_SHIM_OPTION(dtype, ScalarType)
KPIPE_SHIM_OPTION(layout, Layout)
KPIPE_SHIM_OPTION(requires_grad, bool)
KPIPE_SHIM_OPTION(pinned_memory, bool)
KPIPE_SHIM_OPTION(memory_format, MemoryFormat)
TensorOptions TensorOptions::dtype(std::optional<TypeMeta> t) const {
  return dtype(t ? std::optional<ScalarType>(t->type) : std::nullopt);
}
TensorOptions TensorOptions::device_index(DeviceIndex i) const { return device(Device(kCUDA, i)); }
TensorOptions dtype(TypeMeta t) { return t; }
TensorOptions dtype(ScalarType t) { return t; }
TensorOptions device(Device d) { return d; }
TensorOptions layout(Layout l) { return l; }
TensorOptions requires_grad(bool b) { return TensorOptions().requires_grad(b); }
TensorOptions memory_format(MemoryFormat f) { return f; }
void Scalar::read(void* out, ScalarType t) const {
  for_dtype(t, [&](auto v) { *static_cast<decltype(v)*>(out) = real(*this).to<decltype(v)>(); });
}
void no_such_element(size_t i, size_t size) {
  TORCH_CHECK(false, "ArrayRef: invalid index Index = ", i, "; Length = ", size);
  std::abort();
}
void no_such_slice(size_t from, size_t n, size_t size) {
  TORCH_CHECK(false, "ArrayRef: invalid slice, N = ", from, "; M = ", n, "; size = ", size);
  std::abort();
}
}  // namespace core

Tensor& Tensor::operator=(const Tensor& o) & { real(*this) = real(o); return *this; }
Tensor& Tensor::operator=(Tensor&& o) & noexcept { real(*this) = std::move(real(o)); return *this; }
Tensor& Tensor::operator=(const Scalar& v) && { real(*this).fill_(real(v)); return *this; }
Tensor& Tensor::operator=(const Tensor& o) && { real(*this).copy_(real(o)); return *this; }
Tensor& Tensor::operator=(Tensor&& o) && { real(*this).copy_(real(o)); return *this; }
void Tensor::reset() { real(*this).reset(); }
int64_t Tensor::dim() const { return real(*this).dim(); }
int64_t Tensor::numel() const { return real(*this).numel(); }
int64_t Tensor::size(int64_t d) const { return real(*this).size(d); }
int64_t Tensor::stride(int64_t d) const { return real(*this).stride(d); }
int64_t Tensor::storage_offset() const { return real(*this).storage_offset(); }
IntArrayRef Tensor::sizes() const { auto s = real(*this).sizes(); return {s.data(), s.size()}; }
IntArrayRef Tensor::strides() const { auto s = real(*this).strides(); return {s.data(), s.size()}; }
size_t Tensor::nbytes() const { return real(*this).nbytes(); }
size_t Tensor::itemsize() const { return real(*this).itemsize(); }
int64_t Tensor::element_size() const { return real(*this).element_size(); }
TensorOptions Tensor::options() const { return TensorOptions().dtype(scalar_type()).device(device()).layout(layout()); }
TypeMeta Tensor::dtype() const { return TypeMeta(scalar_type()); }
ScalarType Tensor::scalar_type() const { return shim(real(*this).scalar_type()); }
Layout Tensor::layout() const { return static_cast<Layout>(real(*this).layout()); }
Device Tensor::device() const { return shim(real(*this).device()); }
DeviceIndex Tensor::get_device() const { return real(*this).get_device(); }
bool Tensor::is_cpu() const { return real(*this).is_cpu(); }
bool Tensor::is_cuda() const { return real(*this).is_cuda(); }
bool Tensor::is_contiguous(MemoryFormat f) const { return real(*this).is_contiguous(real(f)); }
bool Tensor::is_floating_point() const { return real(*this).is_floating_point(); }
bool Tensor::is_complex() const { return real(*this).is_complex(); }
bool Tensor::is_signed() const { return real(*this).is_signed(); }
bool Tensor::is_sparse() const { return real(*this).is_sparse(); }
bool Tensor::is_alias_of(const Tensor& o) const { return real(*this).is_alias_of(real(o)); }
bool Tensor::requires_grad() const { return real(*this).requires_grad(); }
MemoryFormat Tensor::suggest_memory_format() const {
  return static_cast<MemoryFormat>(real(*this).suggest_memory_format());
}
void* Tensor::data_ptr() const { return real(*this).data_ptr(); }
const void* Tensor::const_data_ptr() const { return real(*this).const_data_ptr(); }
void* Tensor::typed(ScalarType t, bool writable) const {
  void* out = nullptr;
  for_dtype(t, [&](auto v) {
    using T = decltype(v);
    out = writable ? real(*this).mutable_data_ptr<T>() : const_cast<T*>(real(*this).const_data_ptr<T>());
  });
  return out;
}
void Tensor::read(void* out, ScalarType t) const {
  for_dtype(t, [&](auto v) { *static_cast<decltype(v)*>(out) = real(*this).item<decltype(v)>(); });
}
Tensor Tensor::contiguous(MemoryFormat f) const { return shim(real(*this).contiguous(real(f))); }
Tensor Tensor::cpu() const { return shim(real(*this).cpu()); }
Tensor Tensor::cuda() const { return shim(real(*this).cuda()); }
const Tensor& Tensor::requires_grad_(bool on) const { real(*this).requires_grad_(on); return *this; }
Tensor Tensor::toType(ScalarType t) const { return shim(real(*this).toType(real(t))); }
Tensor Tensor::to(TypeMeta t, bool non_blocking, bool copy) const {
  return shim(real(*this).to(real(t.type), non_blocking, copy));
}
Tensor Tensor::operator~() const { return shim(~real(*this)); }
Tensor Tensor::operator-() const { return shim(-real(*this)); }
#define KPIPE_SHIM_ASSIGNMENT(op, type) \
  Tensor& Tensor::operator op(const type& o) { real(*this) op real(o); return *this; }
KPIPE_SHIM_ASSIGNMENTS(KPIPE_SHIM_ASSIGNMENT)
Tensor Tensor::operator[](int64_t i) const { return shim(real(*this)[i]); }
Tensor Tensor::operator[](const Scalar& i) const { return shim(real(*this)[real(i)]); }
Tensor Tensor::operator[](const Tensor& i) const { return shim(real(*this)[real(i)]); }
void Tensor::check_int32() const {
  TORCH_CHECK(numel() <= std::numeric_limits<int32_t>::max(),
              "numel needs to be smaller than int32_t max; otherwise, please use packed_accessor64");
}

namespace factories {
Tensor from_blob(void* data, IntArrayRef sizes, const TensorOptions& o) {
  return shim(torch::from_blob(data, real(sizes), real(o)));
}
Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, const TensorOptions& o) {
  return shim(torch::from_blob(data, real(sizes), real(strides), real(o)));
}
}  // namespace factories
Tensor from_blob(void* data, IntArrayRef sizes, const TensorOptions& o) {
  return shim(at::from_blob(data, real(sizes), real(o)));
}

NoGradGuard::NoGradGuard() : before_(at::GradMode::is_enabled()) { at::GradMode::set_enabled(false); }
NoGradGuard::~NoGradGuard() { at::GradMode::set_enabled(before_); }
int get_num_threads() { return at::get_num_threads(); }

namespace internals {
using Pointer = c10::intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl>;
void* const undefined = c10::UndefinedTensorImpl::singleton();
void retain(void* p) { c10::raw::intrusive_ptr::incref(static_cast<at::TensorImpl*>(p)); }
void release(void* p) { Pointer::reclaim(static_cast<at::TensorImpl*>(p)); }
void wrong_dimensions(int64_t expected, int64_t got) {
  TORCH_CHECK(false, "TensorAccessor expected ", expected, " dims but tensor has ", got);
  std::abort();
}
void parallel_run(int64_t begin, int64_t end, int64_t grain, void (*body)(const void*, int64_t, int64_t), const void* f) {
  at::parallel_for(begin, end, grain, [=](int64_t a, int64_t b) { body(f, a, b); });
}

static std::ostringstream& stream(void* text) { return *static_cast<std::ostringstream*>(text); }
Message::Message() : text_(new std::ostringstream) {}
Message::~Message() { delete &stream(text_); }
void Message::put(const char* s) { stream(text_) << s; }
void Message::add(const char* s, size_t n) { stream(text_).write(s, static_cast<std::streamsize>(n)); }
void Message::add(char v) { stream(text_) << v; }
void Message::add(long long v) { stream(text_) << v; }
void Message::add(unsigned long long v) { stream(text_) << v; }
void Message::add(double v) { stream(text_) << v; }
void Message::add(const void* v) { stream(text_) << v; }
void Message::add(IntArrayRef v) { stream(text_) << real(v); }
void Message::add(ScalarType v) { stream(text_) << real(v); }
void Message::add(TypeMeta v) { stream(text_) << c10::scalarTypeToTypeMeta(real(v.type)); }
void Message::add(const Device& v) { stream(text_) << real(v); }
void Message::add(DeviceType v) { stream(text_) << static_cast<at::DeviceType>(v); }
void Message::add(const Scalar& v) { stream(text_) << real(v); }
void Message::add(const Tensor& v) { stream(text_) << real(v); }
static c10::SourceLocation location(Place p) { return {p.function, p.file, static_cast<uint32_t>(p.line)}; }
void Message::raise(ErrorKind kind, Place place) const {
  auto text = stream(text_).str();
  switch (kind) {
    case ErrorKind::Index: throw c10::IndexError(location(place), text);
    case ErrorKind::Value: throw c10::ValueError(location(place), text);
    case ErrorKind::Type: throw c10::TypeError(location(place), text);
    case ErrorKind::NotImplemented: throw c10::NotImplementedError(location(place), text);
    default: throw c10::Error(location(place), text);
  }
}
void Message::raise_assertion(const char* condition, Place p) const {
  auto place = std::string(" INTERNAL ASSERT FAILED at \"") + p.file + "\":" + std::to_string(p.line);
  throw c10::Error(location(p), condition + place + ", please report a bug to PyTorch. " + stream(text_).str());
}
void Message::warn(Place place) const { c10::warn(c10::Warning(c10::UserWarning(), location(place), stream(text_).str(), false)); }

// Python's side.
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
KPIPE_SHIM_TORCH(Tensor) KPIPE_SHIM_TORCH(ScalarType) KPIPE_SHIM_TORCH(Device) KPIPE_SHIM_TORCH(Scalar)

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
