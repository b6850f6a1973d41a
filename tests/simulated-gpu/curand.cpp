// libcurand: random numbers, other ones than cuRAND's.

#include <curand.h>

#include <random>

#include "simulated.h"

struct Generator {
    cudaStream_t stream = nullptr;
    unsigned long long seed = 0, drawn = 0;
};

template <class Number, class Distribution>
static curandStatus_t draw(curandGenerator_t handle, Number *place, size_t count, Distribution distribution) {
    auto *generator = (Generator *)handle;
    std::seed_seq seeds{generator->seed, generator->drawn++};
    auto numbers = std::mt19937_64(seeds);
    int device = simulated_device_of(generator->stream);
    simulated_queue(generator->stream, [=]() mutable {
        if (simulated_access(device, place, count * sizeof(Number), Access::write, "cuRAND"))
            for (size_t i = 0; i < count; i++) place[i] = distribution(numbers);
    });
    return CURAND_STATUS_SUCCESS;
}

extern "C" {

curandStatus_t curandCreateGenerator(curandGenerator_t *generator, curandRngType_t) {
    if (simulated_current() < 0) return CURAND_STATUS_INITIALIZATION_FAILED;
    *generator = (curandGenerator_t) new Generator;
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandDestroyGenerator(curandGenerator_t generator) {
    delete (Generator *)generator;
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t generator, unsigned long long seed) {
    ((Generator *)generator)->seed = seed;
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetStream(curandGenerator_t generator, cudaStream_t stream) {
    ((Generator *)generator)->stream = stream;
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandGenerateUniform(curandGenerator_t generator, float *place, size_t count) {
    return draw(generator, place, count, std::uniform_real_distribution<float>());
}

curandStatus_t curandGenerateUniformDouble(curandGenerator_t generator, double *place, size_t count) {
    return draw(generator, place, count, std::uniform_real_distribution<double>());
}

curandStatus_t curandGenerateNormal(curandGenerator_t generator, float *place, size_t count, float mean, float deviation) {
    return draw(generator, place, count, std::normal_distribution<float>(mean, deviation));
}

curandStatus_t curandGenerateNormalDouble(curandGenerator_t generator, double *place, size_t count, double mean,
                                          double deviation) {
    return draw(generator, place, count, std::normal_distribution<double>(mean, deviation));
}
}
