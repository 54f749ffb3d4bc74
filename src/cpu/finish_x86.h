/* SPDX-License-Identifier: MIT */
/* The epilogue where FP32 narrows to FP16 in one instruction (F16C, AVX-512). */
#include <immintrin.h>

#ifdef __AVX512F__
#define FINISH_F16_X16(values, halves)                                                             \
    _mm256_storeu_si256((__m256i *)(halves),                                                       \
                        _mm512_cvtps_ph(_mm512_loadu_ps(values), _MM_FROUND_TO_NEAREST_INT))
#else
#define FINISH_F16_X16(values, halves)                                                             \
    _mm_storeu_si128((__m128i *)(halves),                                                          \
                     _mm256_cvtps_ph(_mm256_loadu_ps(values), _MM_FROUND_TO_NEAREST_INT)),         \
        _mm_storeu_si128((__m128i *)((halves) + 8), _mm256_cvtps_ph(_mm256_loadu_ps((values) + 8), \
                                                                    _MM_FROUND_TO_NEAREST_INT))
#endif
#include "cpu/finish.h"
