// What translated kernels begin with: PTX's instructions where C has none.

#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "thread.h"

static inline float as_f32(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline double as_f64(uint64_t bits) { double value; memcpy(&value, &bits, 8); return value; }
static inline uint32_t bits_f32(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }
static inline uint64_t bits_f64(double value) { uint64_t bits; memcpy(&bits, &value, 8); return bits; }

static inline float from_bf16(uint16_t half) { return as_f32((uint32_t)half << 16); }

// To the nearest, and to even half-way.
static inline uint16_t to_bf16(float value) {
    if (isnan(value)) return 0x7fff;
    uint32_t bits = bits_f32(value);
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// By way of an f32 that is rounded to odd, so that it is not rounded twice.
static inline uint16_t bf16_of_f64(double value) {
    float near = (float)value;
    if (!isnan(near) && !isinf(near) && (double)near != value) {
        uint32_t bits = bits_f32(near);
        if (fabs((double)near) > fabs(value)) bits -= 1;
        near = as_f32(bits | 1);
    }
    return to_bf16(near);
}

static inline double saturated(double value) { return value > 0 ? (value < 1 ? value : 1) : 0; }

// To whole numbers as PTX converts: what is out of range becomes the nearest, and NaN 0.
#define TO_WHOLE(name, type, least, most)              \
    static inline type to_##name(double value) {       \
        if (isnan(value)) return 0;                    \
        if (value <= (double)(least)) return least;    \
        if (value >= (double)(most)) return most;      \
        return (type)value;                            \
    }
TO_WHOLE(u8, uint8_t, 0, UINT8_MAX)
TO_WHOLE(s8, int8_t, INT8_MIN, INT8_MAX)
TO_WHOLE(u16, uint16_t, 0, UINT16_MAX)
TO_WHOLE(s16, int16_t, INT16_MIN, INT16_MAX)
TO_WHOLE(u32, uint32_t, 0, UINT32_MAX)
TO_WHOLE(s32, int32_t, INT32_MIN, INT32_MAX)
TO_WHOLE(u64, uint64_t, 0, UINT64_MAX)
TO_WHOLE(s64, int64_t, INT64_MIN, INT64_MAX)

// a · b + c, rounded down.
static inline float fma_down(float a, float b, float c) {
    double exact = (double)a * b + c;
    float near = (float)exact;
    return (double)near > exact ? nextafterf(near, -INFINITY) : near;
}

static inline uint64_t inserted(uint64_t field, uint64_t into, uint32_t start, uint32_t length) {
    if (start >= 64) return into;
    uint64_t mask = (length >= 64 ? ~0ull : (1ull << length) - 1) << start;
    return (into & ~mask) | ((field << start) & mask);
}

// Whether the bytes may be read, or written; if not, that is a fault.
static inline int checked(struct Thread *thread, char *place, int bytes, int needed, const char *else_) {
    uint64_t at = place - thread->memory;
    const char *wrong = 0;
    if (at + bytes > thread->size)
        wrong = "an address outside of this GPU's memory";
    else if ((uintptr_t)place % bytes)
        wrong = "an address that is not aligned";
    else
        for (int i = 0; i < bytes; i++)
            if (thread->state[at + i] < needed) wrong = else_;
    if (wrong) thread->fault(thread, wrong, place, bytes);
    return !wrong;
}

static inline int check_read(struct Thread *thread, char *place, int bytes) {
    return checked(thread, place, bytes, WRITTEN, "a read of memory that nobody wrote");
}

static inline int check_write(struct Thread *thread, char *place, int bytes) {
    if (!checked(thread, place, bytes, ALLOCATED, "a write beyond what is allocated")) return 0;
    memset(thread->state + (place - thread->memory), WRITTEN, bytes);
    return 1;
}
