// Numbers in a GPU's memory, and products of matrices.

#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

enum class Type { f16, bf16, f32, f64 };

inline size_t width(Type type) { return type == Type::f64 ? 8 : type == Type::f32 ? 4 : 2; }

// What the units for TF32 see of an f32: ten bits behind the point.
inline float as_tf32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7f800000) == 0x7f800000) return value;
    bits = (bits + 0x1000) & 0xffffe000;
    memcpy(&value, &bits, 4);
    return value;
}

template <class Sum>
Sum get(const void *place, Type type, size_t at) {
    switch (type) {
        case Type::f64: return static_cast<const double *>(place)[at];
        case Type::f32: return static_cast<const float *>(place)[at];
        case Type::f16: return _cvtsh_ss(static_cast<const uint16_t *>(place)[at]);
        default: break;
    }
    uint32_t bits = (uint32_t) static_cast<const uint16_t *>(place)[at] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

template <class Sum>
void put(void *place, Type type, size_t at, Sum sum) {
    auto value = static_cast<float>(sum);
    switch (type) {
        case Type::f64: static_cast<double *>(place)[at] = sum; return;
        case Type::f32: static_cast<float *>(place)[at] = value; return;
        case Type::f16: static_cast<uint16_t *>(place)[at] = _cvtss_sh(value, 0); return;
        default: break;
    }
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits = std::isnan(value) ? 0x7fff0000 : bits + 0x7fff + (bits >> 16 & 1);
    static_cast<uint16_t *>(place)[at] = bits >> 16;
}

template <class Sum>
std::vector<Sum> read(const void *place, Type type, size_t count, bool tf32) {
    std::vector<Sum> values(count);
    for (size_t i = 0; i < count; i++) values[i] = tf32 ? (Sum)as_tf32(get<float>(place, type, i)) : get<Sum>(place, type, i);
    return values;
}

template <class Sum>
void write(void *place, Type type, const std::vector<Sum> &values) {
    for (size_t i = 0; i < values.size(); i++) put(place, type, i, values[i]);
}

// c += a · b: [m, k], [k, n], [m, n], row by row.
template <class Sum>
void multiply(size_t m, size_t n, size_t k, const Sum *a, const Sum *b, Sum *c) {
    constexpr size_t AT_ONCE = 128;
    for (size_t first = 0; first < k; first += AT_ONCE)
        for (size_t i = 0; i < m; i++) {
            Sum *__restrict row = c + i * n;
            for (size_t l = first; l < k && l < first + AT_ONCE; l++) {
                const Sum *__restrict with = b + l * n;
                for (size_t j = 0; j < n; j++) row[j] += a[i * k + l] * with[j];
            }
        }
}
