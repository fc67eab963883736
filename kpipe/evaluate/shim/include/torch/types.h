#pragma once
#include <kpipe_shim.h>
