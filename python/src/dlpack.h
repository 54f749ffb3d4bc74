/* SPDX-License-Identifier: MIT */
/*
 * The binary interface of DLPack 1.x as far as this extension uses it: how array libraries hand
 * their memory to each other. Layouts and numbers are those of the DLPack specification.
 */
#ifndef DGP_DLPACK_H
#define DGP_DLPACK_H

#include <stdint.h>

typedef enum DLDeviceType {
    kDLCPU = 1,
    kDLCUDA = 2,
    kDLCUDAHost = 3, /* pinned memory of the host */
    kDLCUDAManaged = 13
} DLDeviceType;

typedef enum DLDataTypeCode {
    kDLInt = 0,
    kDLUInt = 1,
    kDLFloat = 2,
    kDLBfloat = 4,
    kDLFloat8_e4m3fn = 10,
    kDLFloat8_e4m3fnuz = 11,
    kDLFloat8_e5m2 = 12,
    kDLFloat8_e5m2fnuz = 13,
    kDLFloat8_e8m0fnu = 14
} DLDataTypeCode;

typedef struct DLDevice {
    int32_t device_type;
    int32_t device_id;
} DLDevice;

typedef struct DLDataType {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;

typedef struct DLTensor {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: contiguous */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor { /* of a capsule named "dltensor" */
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

typedef struct DLPackVersion {
    uint32_t major;
    uint32_t minor;
} DLPackVersion;

#define DLPACK_FLAG_READ_ONLY ((uint64_t)1)

typedef struct DLManagedTensorVersioned { /* of a capsule named "dltensor_versioned" */
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

/*
 * What a framework offers to C code: a table in a capsule named "dlpack_exchange_api", the
 * attribute
 * __dlpack_c_exchange_api__ of its tensor type. Functions return 0, or -1 with a Python error set.
 */
typedef struct DLPackExchangeAPI {
    struct {
        DLPackVersion version;
        void *prev_api;
    } header;
    /* Allocates what `prototype` describes; errors go to set_error(error_context, kind, message).
     */
    int (*managed_tensor_allocator)(DLTensor *prototype, DLManagedTensorVersioned **out,
                                    void *error_context,
                                    void (*set_error)(void *error_context, const char *kind,
                                                      const char *message));
    int (*managed_tensor_from_py_object_no_sync)(void *object, DLManagedTensorVersioned **out);
    /* Takes the tensor over. */
    int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned *tensor, void **out);
    /* Describes without owning: valid while the object is. May be NULL. */
    int (*dltensor_from_py_object_no_sync)(void *object, DLTensor *out);
    int (*current_work_stream)(int32_t device_type, int32_t device_id, void **stream);
} DLPackExchangeAPI;

#endif
