// What every kernel of this folder begins with. Elements are stored as `Stored` and computed with as `Real`, which is
// wider for bf16. A thread adds up the few elements that it has as `Real`, and threads' sums are added up in double.

#define KERNEL extern "C" __global__ void

typedef unsigned Count;

#if defined(STORED_F64)
typedef double Stored;
typedef double Real;
#elif defined(STORED_F32)
typedef float Stored;
typedef float Real;
#elif defined(STORED_BF16)
// The upper half of a float's bits.
typedef unsigned short Stored;
typedef float Real;
#endif

__device__ inline Real real(Stored stored) {
#if defined(STORED_BF16)
    return __uint_as_float((unsigned)stored << 16);
#else
    return stored;
#endif
}

// To the nearest, and to even half-way.
__device__ inline Stored stored(Real real) {
#if defined(STORED_BF16)
    Stored rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(real));
    return rounded;
#else
    return real;
#endif
}

// Elements that lie side by side: VECTOR of them, four or one. A thread reads or writes four in one access (of f64 in
// two), so that more of the memory is on its way at a time.
struct alignas(VECTOR * sizeof(Stored) < 16 ? VECTOR * sizeof(Stored) : 16) Vector {
    Stored of[VECTOR];
};

#define FOR_EACH_OF_VECTOR(k) for (Count k = 0; k < VECTOR; k++)

// Every element once, whatever the number of blocks; or every vector, if `n` counts those.
#define FOR_EACH(i, n) for (Count i = blockIdx.x * THREADS + threadIdx.x; i < (n); i += gridDim.x * THREADS)

// A block's share of images [images, channels, plane]: one part of the values of one channel. Where `plane` counts
// vectors, so does everything here.
struct Part {
    Count channel, number, begin, end, channels, plane, parts;

    __device__ Part(Count images, Count channels, Count plane, Count parts)
        : channels(channels), plane(plane), parts(parts) {
        Count values = images * plane, share = (values + parts - 1) / parts;
        channel = blockIdx.x % channels;
        number = blockIdx.x / channels;
        begin = number * share;
        if (begin > values) begin = values;
        end = begin + share > values ? values : begin + share;
    }

    // Whether it is all of its channel.
    __device__ bool is_whole() const { return parts == 1; }

    // Where its first value lies.
    __device__ Count first() const { return (begin / plane * channels + channel) * plane + begin % plane; }

    // Where what is known of this part lies, in [parts, channels].
    __device__ Count place() const { return number * channels + channel; }
};

// A thread's way through the values of a part: with a step from one to the next in place of a division for each.
struct Walk {
    const Part &part;
    Count value, image, pixel, images_on, pixels_on;

    __device__ Walk(const Part &part)
        : part(part), value(part.begin + threadIdx.x), image(value / part.plane), pixel(value % part.plane),
          images_on(THREADS / part.plane), pixels_on(THREADS % part.plane) {}

    __device__ bool inside() const { return value < part.end; }

    // Where the value lies.
    __device__ Count at() const { return (image * part.channels + part.channel) * part.plane + pixel; }

    __device__ void step() {
        value += THREADS;
        image += images_on;
        pixel += pixels_on;
        if (pixel >= part.plane) {
            pixel -= part.plane;
            image++;
        }
    }
};

#define FOR_EACH_OF(part, walk) for (Walk walk(part); walk.inside(); walk.step())

// Sums over a block's threads, always in the same order; all of them call it, and all get them. Eight at a time: a tree
// of pairs would have all wait for each other twice as often.
template <Count N> struct Sums {
    double of[N];
};

template <Count N> __device__ inline Sums<N> block_sums(Sums<N> own) {
    __shared__ Sums<N> sums[THREADS];
    // Those before may not have been read by all.
    __syncthreads();
    sums[threadIdx.x] = own;
    for (Count left = THREADS; left > 1;) {
        Count next = left > 8 ? left / 8 : 1;
        __syncthreads();
        if (threadIdx.x < next) {
            for (Count other = threadIdx.x + next; other < left; other += next)
                for (Count n = 0; n < N; n++) own.of[n] += sums[other].of[n];
            sums[threadIdx.x] = own;
        }
        left = next;
    }
    __syncthreads();
    return sums[0];
}

__device__ inline double block_sum(double value) { return block_sums(Sums<1>{{value}}).of[0]; }

// What a thread adds up of the parts' numbers: every THREADS-th of them.
#define FOR_EACH_PART(part, parts) for (Count part = threadIdx.x; part < (parts); part += THREADS)

// Adds up what each thread has of a part, and leaves the sum at the part's place in [parts, channels]. The only part of a
// channel has its total.
__device__ inline void leave_sum(const Part &part, Real own, double *sums, Stored *rounded) {
    double sum = block_sum(own);
    if (threadIdx.x != 0) return;
    sums[part.place()] = sum;
    if (part.is_whole()) rounded[part.channel] = stored(sum);
}

// max(x, 0), as "not above zero" turned round: a NaN stays one.
__device__ inline Real rectified(Real x) { return x <= 0 ? 0 : x; }

// What of a gradient passes a relu whose output was `y`.
__device__ inline Real passed(Real y, Real grad) { return y <= 0 ? 0 : grad; }
