// libkpipe_shim: what the shim's headers declare, over the real torch. Built once per torch, Python and compiler.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#ifdef KPIPE_SHIM_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include <sstream>

#define KPIPE_SHIM_RUNTIME
#define KPIPE_SHIM_FULL
#pragma GCC visibility push(default)
#include "kpipe_shim_python.h"
#ifdef KPIPE_SHIM_CUDA
#include "kpipe_shim_cuda_guard.h"
#endif
#include "runtime/convert.h"
#include "runtime/core.h"
#include "runtime/tensor.h"
#include "runtime/check.h"
#include "runtime/python.h"
#ifdef KPIPE_SHIM_CUDA
#include "runtime/cuda.h"
#endif
