/* SPDX-License-Identifier: MIT */
/* Opening the CUDA driver, and naming its errors. */
#include "cuda/driver.h"

#include <dlfcn.h>

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

static dg_status find_functions(dgi_driver *driver)
{
    const struct {
        const char *name;
        void *member;
    } functions[] = {
#define MEMBER(function) {TEXT(function), &driver->function},
        DGI_DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *symbol = dlsym(driver->library, functions[i].name);
        if (symbol == NULL)
            return dgi_fail(DG_UNSUPPORTED_DEVICE,
                            "the CUDA driver has no %s: install a driver for CUDA %d.%d or newer",
                            functions[i].name, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
        *(void **)functions[i].member = symbol;
    }
    return DG_OK;
}

dg_status dgi_driver_open(dgi_driver *driver, dg_device device)
{
    *driver = (dgi_driver){.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (driver->library == NULL)
        return dgi_fail(DG_UNSUPPORTED_DEVICE,
                        "device is %d, but this machine has no CUDA driver (%s): use DG_CPU (-1)",
                        device, dlerror());
    dg_status status = find_functions(driver);
    if (status == DG_OK) {
        CUresult result = driver->cuInit(0);
        if (result != CUDA_SUCCESS) {
            const char *name = "an unknown error";
            driver->cuGetErrorName(result, &name);
            status =
                dgi_fail(DG_UNSUPPORTED_DEVICE,
                         "device is %d, but the CUDA driver does not start (%s): use DG_CPU (-1)",
                         device, name);
        }
    }
    if (status != DG_OK)
        dgi_driver_close(driver);
    return status;
}

void dgi_driver_close(dgi_driver *driver)
{
    dlclose(driver->library);
}

dg_status dgi_driver_check(const dgi_driver *driver, CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return DG_OK;
    const char *name = "unknown error", *text = "no description";
    driver->cuGetErrorName(result, &name);
    driver->cuGetErrorString(result, &text);
    return dgi_fail(result == CUDA_ERROR_OUT_OF_MEMORY ? DG_OUT_OF_MEMORY : DG_DRIVER_ERROR,
                    "%s failed: %s (%s)", what, name, text);
}
