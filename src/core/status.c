/* SPDX-License-Identifier: MIT */
/* The calling thread's error message, and the names of status codes. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>

/* Room for a message that lists names: the missing shards of a large model, say. */
static _Thread_local char last_error[16384];

dg_status dgi_fail(dg_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

const char *dg_last_error(void)
{
    return last_error;
}

const char *dg_status_name(dg_status status)
{
    static const char *const names[] = {
        [DG_OK] = "DG_OK",
        [DG_INVALID_ARGUMENT] = "DG_INVALID_ARGUMENT",
        [DG_UNSUPPORTED_SHAPE] = "DG_UNSUPPORTED_SHAPE",
        [DG_UNSUPPORTED_TYPE] = "DG_UNSUPPORTED_TYPE",
        [DG_UNSUPPORTED_SCALE] = "DG_UNSUPPORTED_SCALE",
        [DG_UNSUPPORTED_DEVICE] = "DG_UNSUPPORTED_DEVICE",
        [DG_DEVICE_MISMATCH] = "DG_DEVICE_MISMATCH",
        [DG_MISALIGNED] = "DG_MISALIGNED",
        [DG_NOT_PREPARED] = "DG_NOT_PREPARED",
        [DG_OUT_OF_MEMORY] = "DG_OUT_OF_MEMORY",
        [DG_NOT_FOUND] = "DG_NOT_FOUND",
        [DG_IO_ERROR] = "DG_IO_ERROR",
        [DG_BAD_FILE] = "DG_BAD_FILE",
        [DG_DRIVER_ERROR] = "DG_DRIVER_ERROR",
        [DG_CANCELLED] = "DG_CANCELLED",
    };
    size_t index = (size_t)status;
    return index < sizeof names / sizeof names[0] ? names[index] : "unknown status";
}
