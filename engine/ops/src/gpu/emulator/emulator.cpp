// Runs a kernel on the processor: block after block, each thread of a block a thread.
//
// Called with the kernel's name and the number of blocks. Arguments come on the standard input, one after the other: 'm',
// a length in bytes and as many bytes of memory; 'c' and a count; 'n' and a number. All memory goes to the standard
// output when the kernel is done.

#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

// CUDA's words.
struct Index {
    unsigned x;
};
static thread_local Index threadIdx;
static Index blockIdx, gridDim;
static std::barrier<> block(THREADS);

#define KERNEL static void
#define __device__
// One block runs at a time.
#define __shared__ static
#define __syncthreads() block.arrive_and_wait()

using std::exp;
using std::log;
using std::sqrt;

#include "kernels.inc"

struct Memory {
    size_t length;
    // Of its own, so that a sanitizer sees what reaches beyond it.
    std::unique_ptr<char[]> bytes;
};
static std::vector<Memory> memories;

static void read(void *to, size_t length) {
    if (fread(to, 1, length, stdin) != length) {
        fprintf(stderr, "an argument is missing\n");
        exit(3);
    }
}

static void expect(char tag) {
    char found;
    read(&found, 1);
    if (found != tag) {
        fprintf(stderr, "argument of kind %c where the kernel has %c\n", found, tag);
        exit(3);
    }
}

// The size of what memory is made of.
template <class T> constexpr size_t element = sizeof(T);
template <> constexpr size_t element<Vector> = sizeof(Stored);
template <> constexpr size_t element<const Vector> = sizeof(Stored);

// A count or a number.
template <class T> struct Argument {
    static T next() {
        expect(std::is_same_v<T, double> ? 'n' : 'c');
        T value;
        read(&value, sizeof value);
        return value;
    }
};

template <class T> struct Argument<T *> {
    static T *next() {
        // The type's size tells a kernel that takes f32 for f64.
        expect('m');
        uint64_t size, length;
        read(&size, sizeof size);
        if (size != element<T>) {
            fprintf(stderr, "memory of elements of %zu bytes where the kernel has %zu\n", (size_t)size, element<T>);
            exit(3);
        }
        read(&length, sizeof length);
        memories.push_back({length, std::make_unique<char[]>(length)});
        char *bytes = memories.back().bytes.get();
        read(bytes, length);
        return reinterpret_cast<T *>(bytes);
    }
};

template <class... A> static void run(void (*kernel)(A...), unsigned blocks) {
    // In braces, arguments are read in their order.
    std::tuple<A...> arguments{Argument<A>::next()...};
    if (getchar() != EOF) {
        fprintf(stderr, "more arguments than the kernel has\n");
        exit(3);
    }
    gridDim.x = blocks;
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < THREADS; thread++)
        threads.emplace_back([=] {
            threadIdx.x = thread;
            for (unsigned number = 0; number < blocks; number++) {
                if (thread == 0) blockIdx.x = number;
                block.arrive_and_wait();
                std::apply(kernel, arguments);
                block.arrive_and_wait();
            }
        });
    for (auto &thread : threads) thread.join();
    for (const Memory &memory : memories) fwrite(memory.bytes.get(), 1, memory.length, stdout);
}

int main(int, char **arguments) {
    const char *name = arguments[1];
    unsigned blocks = strtoul(arguments[2], nullptr, 10);
#define NAMED(kernel) \
    if (strcmp(name, #kernel) == 0) return run(kernel, blocks), 0;
#include "names.inc"
    fprintf(stderr, "there is no kernel %s\n", name);
    return 3;
}
