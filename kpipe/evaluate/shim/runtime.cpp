// libkpipe_shim: the operations of kpipe_shim_table.h over the real at::Tensor. Built once per torch, Python and compiler.
#include <torch/extension.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <new>
#include <stdexcept>

#pragma GCC visibility push(default)
extern "C" {
struct kp_options { int8_t dtype, device, index, requires_grad, given; };
struct kp_scalar { int8_t kind; int64_t i; double d; };
struct kp_function { const char* name; PyObject* (*call)(PyObject*, PyObject* const*, int64_t); };
}

namespace {
using at::Tensor;
using Impl = c10::TensorImpl;
using Pointer = c10::intrusive_ptr<Impl, c10::UndefinedTensorImpl>;

Impl* impl(void* p) {
  TORCH_CHECK(p, "an undefined tensor was used");
  return static_cast<Impl*>(p);
}
Tensor borrow(void* p) { return p ? Tensor(Pointer::reclaim_copy(static_cast<Impl*>(p))) : Tensor(); }
void* give(Tensor t) { return t.defined() ? t.unsafeReleaseTensorImpl() : nullptr; }
at::Scalar scalar(kp_scalar s) {
  return s.kind == 1 ? at::Scalar(s.d) : s.kind == 2 ? at::Scalar(s.i != 0) : at::Scalar(s.i);
}
at::TensorOptions options(kp_options o) {
  at::TensorOptions out;
  if (o.given & 1) out = out.dtype(static_cast<at::ScalarType>(o.dtype));
  if (o.given & 2) out = out.device(c10::Device(static_cast<c10::DeviceType>(o.device), o.index));
  return o.requires_grad ? out.requires_grad(true) : out;
}
}  // namespace

extern "C" {
void kp_retain(void* p) { c10::raw::intrusive_ptr::incref(impl(p)); }
void kp_release(void* p) { c10::raw::intrusive_ptr::decref(impl(p)); }
void* kp_data(void* p, int dtype) {
  Impl* t = impl(p);
  auto have = c10::typeMetaToScalarType(t->dtype());
  TORCH_CHECK(dtype < 0 || static_cast<int>(have) == dtype, "expected scalar type ",
              static_cast<at::ScalarType>(dtype), " but found ", have);
  return t->mutable_data();
}
int64_t kp_numel(void* p) { return impl(p)->numel(); }
int64_t kp_dim(void* p) { return impl(p)->dim(); }
int64_t kp_size(void* p, int64_t i) { return impl(p)->size(i); }
int64_t kp_stride(void* p, int64_t i) { return borrow(impl(p)).stride(i); }
const int64_t* kp_sizes(void* p, int64_t* n) { auto s = impl(p)->sizes(); *n = s.size(); return s.data(); }
const int64_t* kp_strides(void* p, int64_t* n) { auto s = impl(p)->strides(); *n = s.size(); return s.data(); }
int kp_dtype(void* p) { return static_cast<int>(c10::typeMetaToScalarType(impl(p)->dtype())); }
int kp_is_contiguous(void* p) { return impl(p)->is_contiguous(); }
int64_t kp_element_size(void* p) { return static_cast<int64_t>(impl(p)->itemsize()); }
kp_options kp_options_of(void* p) {
  auto d = impl(p)->device();
  return {static_cast<int8_t>(kp_dtype(p)), static_cast<int8_t>(d.type()), static_cast<int8_t>(d.index()), 0, 3};
}
void* kp_to(void* p, kp_options o) {
  Tensor t = borrow(impl(p));
  if (o.given & 1) t = t.to(static_cast<at::ScalarType>(o.dtype));
  if (o.given & 2) t = t.to(c10::Device(static_cast<c10::DeviceType>(o.device), o.index));
  return give(t);
}
void* kp_full(const int64_t* s, int64_t n, kp_scalar v, kp_options o) {
  return give(torch::full(at::IntArrayRef(s, n), scalar(v), options(o)));
}
void* kp_full_like(void* p, kp_scalar v, kp_options o) { return give(torch::full_like(borrow(impl(p)), scalar(v), options(o))); }
void kp_fill(void* p, kp_scalar v) { borrow(impl(p)).fill_(scalar(v)); }
kp_scalar kp_item(void* p) {
  at::Scalar s = borrow(impl(p)).item();
  if (s.isFloatingPoint()) return {1, 0, s.toDouble()};
  if (s.isBoolean()) return {2, s.toBool(), 0.0};
  return {0, s.toLong(), 0.0};
}
void* kp_sum_dim(void* p, const int64_t* d, int64_t n, int keep) { return give(borrow(impl(p)).sum(at::IntArrayRef(d, n), keep)); }
void* kp_mean_dim(void* p, const int64_t* d, int64_t n, int keep) { return give(borrow(impl(p)).mean(at::IntArrayRef(d, n), keep)); }
void* kp_scalar_op(int op, void* p, kp_scalar v, int reversed) {
  Tensor t = borrow(impl(p));
  at::Scalar s = scalar(v);
  switch (op) {
    case 0: return give(reversed ? s + t : t + s);
    case 1: return give(reversed ? s - t : t - s);
    case 2: return give(reversed ? s * t : t * s);
    default: return give(reversed ? s / t : t / s);
  }
}
void kp_scalar_inplace(int op, void* p, kp_scalar v) {
  Tensor t = borrow(impl(p));
  switch (op) {
    case 0: t.add_(scalar(v)); break;
    case 1: t.sub_(scalar(v)); break;
    case 2: t.mul_(scalar(v)); break;
    default: t.div_(scalar(v));
  }
}
[[noreturn]] void kp_throw(const char* function, const char* file, int line, const char* message) {
  throw c10::Error({function, file, static_cast<uint32_t>(line)}, message);
}

#define KP_METHOD0(name) void* kp0_##name(void* p) { return give(borrow(impl(p)).name()); }
#define KP_METHOD1(name) void* kp1_##name(void* p, int64_t a) { return give(borrow(impl(p)).name(a)); }
#define KP_METHOD2(name) void* kp2_##name(void* p, int64_t a, int64_t b) { return give(borrow(impl(p)).name(a, b)); }
#define KP_METHOD3(name) void* kp3_##name(void* p, int64_t a, int64_t b, int64_t c) { return give(borrow(impl(p)).name(a, b, c)); }
#define KP_SHAPE(name) void* kps_##name(void* p, const int64_t* s, int64_t n) { return give(borrow(impl(p)).name(at::IntArrayRef(s, n))); }
#define KP_UNARY(name) void* kpu_##name(void* p) { return give(borrow(impl(p)).name()); }
#define KP_BINARY(name) void* kpb_##name(void* p, void* q) { return give(borrow(impl(p)).name(borrow(impl(q)))); }
#define KP_INPLACE(name) void kpi_##name(void* p, void* q) { borrow(impl(p)).name(borrow(impl(q))); }
#define KP_LIKE(name) void* kpl_##name(void* p, kp_options o) { return give(torch::name(borrow(impl(p)), options(o))); }
#define KP_FACTORY(name) void* kpf_##name(const int64_t* s, int64_t n, kp_options o) { return give(torch::name(at::IntArrayRef(s, n), options(o))); }
#include "include/kpipe_shim_table.h"

int kp_get_tensor(PyObject* o, void** out) {
  if (!THPVariable_Check(o)) return 0;
  *out = give(THPVariable_Unpack(o));
  return 1;
}
int kp_get_int(PyObject* o, int64_t* out) {
  if (PyFloat_Check(o) || !PyIndex_Check(o)) return 0;
  *out = PyLong_AsLongLong(o);
  if (!PyErr_Occurred()) return 1;
  PyErr_Clear();
  return 0;
}
int kp_get_double(PyObject* o, double* out) {
  *out = PyFloat_AsDouble(o);
  if (!PyErr_Occurred()) return 1;
  PyErr_Clear();
  return 0;
}
int kp_get_bool(PyObject* o, bool* out) { *out = o == Py_True; return o == Py_True || o == Py_False; }
const char* kp_get_string(PyObject* o, int64_t* n) {
  Py_ssize_t size = 0;
  const char* s = PyUnicode_Check(o) ? PyUnicode_AsUTF8AndSize(o, &size) : nullptr;
  if (!s) PyErr_Clear();
  *n = size;
  return s;
}
int kp_is_none(PyObject* o) { return o == Py_None; }
int64_t kp_length(PyObject* o) { return PyList_Check(o) ? PyList_GET_SIZE(o) : PyTuple_Check(o) ? PyTuple_GET_SIZE(o) : -1; }
PyObject* kp_element(PyObject* o, int64_t i) { return PyList_Check(o) ? PyList_GET_ITEM(o, i) : PyTuple_GET_ITEM(o, i); }
PyObject* kp_put_tensor(void* p) { return THPVariable_Wrap(p ? Tensor(Pointer::reclaim(static_cast<Impl*>(p))) : Tensor()); }
PyObject* kp_put_int(int64_t v) { return PyLong_FromLongLong(v); }
PyObject* kp_put_double(double v) { return PyFloat_FromDouble(v); }
PyObject* kp_put_bool(bool v) { return PyBool_FromLong(v); }
PyObject* kp_put_string(const char* s, int64_t n) { return PyUnicode_DecodeUTF8(s, n, "replace"); }
PyObject* kp_put_none() { Py_RETURN_NONE; }
PyObject* kp_put_sequence(PyObject** items, int64_t n, int tuple) {
  PyObject* out = tuple ? PyTuple_New(n) : PyList_New(n);
  for (int64_t i = 0; i < n; i++) {
    if (tuple) PyTuple_SET_ITEM(out, i, items[i]);
    else PyList_SET_ITEM(out, i, items[i]);
  }
  return out;
}
PyObject* kp_arguments_error(const char* name) {
  PyErr_Format(PyExc_TypeError, "%s(): incompatible function arguments", name);
  return nullptr;
}
PyObject* kp_raise_current() {
  try {
    throw;
  } catch (const c10::IndexError& e) {
    PyErr_SetString(PyExc_IndexError, e.what_without_backtrace());
  } catch (const c10::ValueError& e) {
    PyErr_SetString(PyExc_ValueError, e.what_without_backtrace());
  } catch (const c10::TypeError& e) {
    PyErr_SetString(PyExc_TypeError, e.what_without_backtrace());
  } catch (const c10::NotImplementedError& e) {
    PyErr_SetString(PyExc_NotImplementedError, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what_without_backtrace());
  } catch (const std::bad_alloc& e) {
    PyErr_SetString(PyExc_MemoryError, e.what());
  } catch (const std::domain_error& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const std::invalid_argument& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const std::length_error& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const std::out_of_range& e) {
    PyErr_SetString(PyExc_IndexError, e.what());
  } catch (const std::range_error& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const std::overflow_error& e) {
    PyErr_SetString(PyExc_OverflowError, e.what());
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "Caught an unknown exception!");
  }
  return nullptr;
}
PyObject* kp_module(const char* name, const kp_function* functions, int n) {
  auto* methods = new PyMethodDef[n + 1]();
  for (int i = 0; i < n; i++) {
    auto call = reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(functions[i].call));
    methods[i] = {functions[i].name, call, METH_FASTCALL, functions[i].name};
  }
  auto* definition = new PyModuleDef{PyModuleDef_HEAD_INIT, name, "", -1, methods};
  return PyModule_Create(definition);
}
}
