// libcudnn: the three products of a convolution, image by image: unfold, multiply, fold.

#include <cudnn.h>

#include "handle.h"
#include "numbers.h"

struct Images {
    int count, channels, height, width;
    Type type;
};
struct Filter {
    int out, in, height, width;
    Type type;
};
struct Way {
    int pad_h, pad_w, stride_h, stride_w;
    Type sums;
    cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

enum Pass { OUTPUT, INPUT_GRADIENT, WEIGHT_GRADIENT };

struct Convolution {
    Pass pass;
    int device;
    Images x, y;
    Filter weight;
    Way way;
    const void *x_at, *weight_at, *y_at;
    void *workspace;
    size_t workspace_size;
    // Like Winograd's, which leaves a rounding error where a sum is zero.
    bool transforms;

    size_t patch() const { return (size_t)weight.in * weight.height * weight.width; }
    size_t image() const { return (size_t)x.channels * x.height * x.width; }
    size_t pixels() const { return (size_t)y.height * y.width; }
};

// For each element of a patch and each output pixel: where that is in an image, or -1 where it is padding.
template <class Visit>
static void unfold(const Convolution &c, Visit visit) {
    size_t at = 0;
    for (int channel = 0; channel < c.weight.in; channel++)
        for (int i = 0; i < c.weight.height; i++)
            for (int j = 0; j < c.weight.width; j++)
                for (int row = 0; row < c.y.height; row++)
                    for (int column = 0; column < c.y.width; column++) {
                        int h = row * c.way.stride_h - c.way.pad_h + i, w = column * c.way.stride_w - c.way.pad_w + j;
                        bool inside = h >= 0 && h < c.x.height && w >= 0 && w < c.x.width;
                        visit(at++, inside ? ((long)channel * c.x.height + h) * c.x.width + w : -1L);
                    }
}

template <class Sum>
static std::vector<Sum> transposed(const std::vector<Sum> &matrix, size_t rows, size_t columns) {
    std::vector<Sum> result(matrix.size());
    for (size_t row = 0; row < rows; row++)
        for (size_t column = 0; column < columns; column++) result[column * rows + row] = matrix[row * columns + column];
    return result;
}

template <class Sum>
static void compute(const Convolution &c) {
    const size_t patch = c.patch(), image = c.image(), pixels = c.pixels(), out = c.weight.out, images = c.x.count;
    const size_t x_len = images * image, weight_len = out * patch, y_len = images * out * pixels;
    const Type type = c.x.type;
    auto access = [&](Pass result) { return c.pass == result ? Access::write : Access::read; };
    if (!simulated_access(c.device, c.x_at, x_len * width(type), access(INPUT_GRADIENT), "cuDNN, input") ||
        !simulated_access(c.device, c.weight_at, weight_len * width(type), access(WEIGHT_GRADIENT), "cuDNN, kernel") ||
        !simulated_access(c.device, c.y_at, y_len * width(type), access(OUTPUT), "cuDNN, output"))
        return;
    if (c.workspace_size > 0) {
        if (!simulated_access(c.device, c.workspace, c.workspace_size, Access::write, "cuDNN, workspace")) return;
        memset(c.workspace, 0xff, c.workspace_size);
    }
    const bool tf32 = type == Type::f32 && c.way.math != CUDNN_FMA_MATH;
    std::vector<Sum> x(x_len, 0), weight(weight_len, 0), y(y_len, 0), columns(patch * pixels);
    if (c.pass != INPUT_GRADIENT) x = read<Sum>(c.x_at, type, x_len, tf32);
    if (c.pass != WEIGHT_GRADIENT) weight = read<Sum>(c.weight_at, type, weight_len, tf32);
    if (c.pass != OUTPUT) y = read<Sum>(c.y_at, type, y_len, tf32);
    const auto weight_transposed = transposed(weight, out, patch);
    for (size_t number = 0; number < images; number++) {
        Sum *in = &x[number * image], *result = &y[number * out * pixels];
        if (c.pass == INPUT_GRADIENT) {
            std::fill(columns.begin(), columns.end(), Sum(0));
            multiply<Sum>(patch, pixels, out, weight_transposed.data(), result, columns.data());
            unfold(c, [&](size_t at, long pixel) {
                if (pixel >= 0) in[pixel] += columns[at];
            });
            continue;
        }
        unfold(c, [&](size_t at, long pixel) { columns[at] = pixel < 0 ? Sum(0) : in[pixel]; });
        if (c.pass == OUTPUT)
            multiply<Sum>(out, pixels, patch, weight.data(), columns.data(), result);
        else
            multiply<Sum>(out, patch, pixels, result, transposed(columns, patch, pixels).data(), weight.data());
    }
    if (c.pass == OUTPUT && c.transforms) {
        for (size_t at = 0; at < y_len; at++)
            if (y[at] == 0) y[at] = at % (out * pixels) % 2 ? Sum(1e-18) : Sum(-1e-18);
    }
    if (c.pass == OUTPUT) write((void *)c.y_at, type, y);
    if (c.pass == INPUT_GRADIENT) write((void *)c.x_at, type, x);
    if (c.pass == WEIGHT_GRADIENT) write((void *)c.weight_at, type, weight);
}

// Some algorithms need memory to work in, and that is no less than they say.
static size_t workspace_of(int algorithm, const Filter &filter) {
    return algorithm == 0 ? 0 : 256 + (size_t)filter.in * filter.height * filter.width * 64;
}

// Not every algorithm that heuristics suggest can compute the product: here, transforms of kernels of one pixel cannot.
static bool works(int algorithm, const Filter &filter) { return algorithm == 0 || filter.height * filter.width > 1; }

static cudnnStatus_t ask_workspace(int algorithm, const cudnnFilterDescriptor_t weight, size_t *size) {
    const Filter &filter = *(const Filter *)weight;
    if (!works(algorithm, filter)) return CUDNN_STATUS_NOT_SUPPORTED;
    *size = workspace_of(algorithm, filter);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t queue(cudnnHandle_t handle, const void *alpha, const void *beta, int algorithm, Convolution c) {
    auto *known = (Handle *)handle;
    bool wide = c.x.type == Type::f64;
    auto scale = [=](const void *at) { return wide ? *(const double *)at : *(const float *)at; };
    double one = scale(alpha), zero = scale(beta);
    int rows = (c.x.height + 2 * c.way.pad_h - c.weight.height) / c.way.stride_h + 1;
    int columns = (c.x.width + 2 * c.way.pad_w - c.weight.width) / c.way.stride_w + 1;
    size_t needed = workspace_of(algorithm, c.weight);
    if (!known->ready("cuDNN")) return CUDNN_STATUS_BAD_PARAM;
    const char *wrong = nullptr;
    if (one != 1 || zero != 0)
        wrong = "scales are not 1 and 0, which is all that is simulated";
    else if (c.y.count != c.x.count || c.y.channels != c.weight.out || c.x.channels != c.weight.in || c.y.height != rows ||
             c.y.width != columns)
        wrong = "sizes do not fit";
    else if (c.x.type != c.weight.type || c.x.type != c.y.type || c.way.sums != (wide ? Type::f64 : Type::f32))
        wrong = "types do not fit";
    else if (c.workspace_size < needed || (needed > 0 && c.workspace == nullptr))
        wrong = "the workspace is too small";
    if (wrong != nullptr) {
        simulated_fault("cuDNN: %s", wrong);
        return CUDNN_STATUS_BAD_PARAM;
    }
    if (!works(algorithm, c.weight)) return CUDNN_STATUS_NOT_SUPPORTED;
    c.device = known->device;
    c.workspace_size = needed;
    c.transforms = c.pass == OUTPUT && algorithm == CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED;
    simulated_queue(known->stream, [=] {
        wide ? compute<double>(c) : compute<float>(c);
    });
    return CUDNN_STATUS_SUCCESS;
}

static bool known_type(cudnnDataType_t from, Type &to) {
    to = from == CUDNN_DATA_DOUBLE ? Type::f64 : from == CUDNN_DATA_FLOAT ? Type::f32 : Type::bf16;
    return from == CUDNN_DATA_DOUBLE || from == CUDNN_DATA_FLOAT || from == CUDNN_DATA_BFLOAT16;
}

// What heuristics suggest: some that a run must not take first, which are there to be passed over.
template <class Entry, class Algorithm>
static cudnnStatus_t suggest(Algorithm plain, Algorithm fast, int room, int *count, Entry *entries) {
    struct Suggestion {
        Algorithm algorithm;
        cudnnStatus_t status;
        cudnnDeterminism_t determinism;
        cudnnMathType_t math;
    };
    const Suggestion suggestions[] = {
        {fast, CUDNN_STATUS_SUCCESS, CUDNN_NON_DETERMINISTIC, CUDNN_DEFAULT_MATH},
        {fast, CUDNN_STATUS_NOT_SUPPORTED, CUDNN_DETERMINISTIC, CUDNN_FMA_MATH},
        {fast, CUDNN_STATUS_SUCCESS, CUDNN_DETERMINISTIC, CUDNN_TENSOR_OP_MATH},
        {fast, CUDNN_STATUS_SUCCESS, CUDNN_DETERMINISTIC, CUDNN_FMA_MATH},
        {plain, CUDNN_STATUS_SUCCESS, CUDNN_DETERMINISTIC, CUDNN_DEFAULT_MATH},
    };
    *count = 0;
    for (const auto &one : suggestions) {
        if (*count == room) break;
        Entry &entry = entries[(*count)++];
        memset(&entry, 0, sizeof entry);
        entry.algo = one.algorithm, entry.status = one.status;
        entry.determinism = one.determinism, entry.mathType = one.math;
    }
    return CUDNN_STATUS_SUCCESS;
}

#define OWNED(Name, Handle_t, Type_)                                    \
    cudnnStatus_t cudnnCreate##Name(Handle_t *made) {                   \
        *made = (Handle_t) new Type_{};                                 \
        return CUDNN_STATUS_SUCCESS;                                    \
    }                                                                   \
    cudnnStatus_t cudnnDestroy##Name(Handle_t made) {                   \
        delete (Type_ *)made;                                           \
        return CUDNN_STATUS_SUCCESS;                                    \
    }

extern "C" {

OWNED(TensorDescriptor, cudnnTensorDescriptor_t, Images)
OWNED(FilterDescriptor, cudnnFilterDescriptor_t, Filter)
OWNED(ConvolutionDescriptor, cudnnConvolutionDescriptor_t, Way)

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    return open(handle) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    delete (Handle *)handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    ((Handle *)handle)->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format, cudnnDataType_t type,
                                         int n, int c, int h, int w) {
    Type known;
    if (!known_type(type, known) || format != CUDNN_TENSOR_NCHW || n < 1 || c < 1 || h < 1 || w < 1)
        return CUDNN_STATUS_BAD_PARAM;
    *(Images *)tensor = Images{n, c, h, w, known};
    return CUDNN_STATUS_SUCCESS;
}

// candle's own convolutions ask for it, and the course has others.
cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t, cudnnDataType_t, int, int, int, int, int, int, int, int) {
    return CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t format,
                                         int k, int c, int h, int w) {
    Type known;
    if (!known_type(type, known) || format != CUDNN_TENSOR_NCHW) return CUDNN_STATUS_BAD_PARAM;
    *(Filter *)filter = Filter{k, c, h, w, known};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t way, int pad_h, int pad_w, int stride_h,
                                              int stride_w, int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t sums) {
    Type known;
    if (!known_type(sums, known) || mode != CUDNN_CROSS_CORRELATION || dilation_h != 1 || dilation_w != 1)
        return CUDNN_STATUS_NOT_SUPPORTED;
    *(Way *)way = Way{pad_h, pad_w, stride_h, stride_w, known};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t way, cudnnMathType_t math) {
    ((Way *)way)->math = math;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t, const cudnnConvolutionDescriptor_t,
                                                     const cudnnTensorDescriptor_t, const int room, int *count,
                                                     cudnnConvolutionFwdAlgoPerf_t *entries) {
    // Heuristics may have nothing to say of what can be computed all the same.
    const Images &images = *(const Images *)x;
    if (images.type == Type::bf16 && images.channels % 2) return CUDNN_STATUS_NOT_SUPPORTED;
    return suggest(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, room, count,
                   entries);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, const cudnnFilterDescriptor_t,
                                                          const cudnnTensorDescriptor_t, const cudnnConvolutionDescriptor_t,
                                                          const cudnnTensorDescriptor_t, const int room, int *count,
                                                          cudnnConvolutionBwdDataAlgoPerf_t *entries) {
    return suggest(CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, room, count, entries);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                            const cudnnTensorDescriptor_t, const cudnnConvolutionDescriptor_t,
                                                            const cudnnFilterDescriptor_t, const int room, int *count,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t *entries) {
    return suggest(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, room, count, entries);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                      const cudnnFilterDescriptor_t filter, const cudnnConvolutionDescriptor_t,
                                                      const cudnnTensorDescriptor_t, cudnnConvolutionFwdAlgo_t algorithm,
                                                      size_t *size) {
    return ask_workspace(algorithm, filter, size);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, const cudnnFilterDescriptor_t filter,
                                                           const cudnnTensorDescriptor_t, const cudnnConvolutionDescriptor_t,
                                                           const cudnnTensorDescriptor_t,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm, size_t *size) {
    return ask_workspace(algorithm, filter, size);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                             const cudnnTensorDescriptor_t, const cudnnConvolutionDescriptor_t,
                                                             const cudnnFilterDescriptor_t filter,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm, size_t *size) {
    return ask_workspace(algorithm, filter, size);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t x, const void *x_at,
                                      const cudnnFilterDescriptor_t weight, const void *weight_at,
                                      const cudnnConvolutionDescriptor_t way, cudnnConvolutionFwdAlgo_t algorithm,
                                      void *workspace, size_t size, const void *beta, const cudnnTensorDescriptor_t y,
                                      void *y_at) {
    return queue(handle, alpha, beta, algorithm,
                 {OUTPUT, 0, *(Images *)x, *(Images *)y, *(Filter *)weight, *(Way *)way, x_at, weight_at, y_at, workspace, size});
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha, const cudnnFilterDescriptor_t weight,
                                           const void *weight_at, const cudnnTensorDescriptor_t y, const void *y_at,
                                           const cudnnConvolutionDescriptor_t way, cudnnConvolutionBwdDataAlgo_t algorithm,
                                           void *workspace, size_t size, const void *beta, const cudnnTensorDescriptor_t x,
                                           void *x_at) {
    return queue(handle, alpha, beta, algorithm, {INPUT_GRADIENT, 0, *(Images *)x, *(Images *)y, *(Filter *)weight, *(Way *)way,
                                                  x_at, weight_at, y_at, workspace, size});
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t x,
                                             const void *x_at, const cudnnTensorDescriptor_t y, const void *y_at,
                                             const cudnnConvolutionDescriptor_t way, cudnnConvolutionBwdFilterAlgo_t algorithm,
                                             void *workspace, size_t size, const void *beta,
                                             const cudnnFilterDescriptor_t weight, void *weight_at) {
    return queue(handle, alpha, beta, algorithm, {WEIGHT_GRADIENT, 0, *(Images *)x, *(Images *)y, *(Filter *)weight, *(Way *)way,
                                                  x_at, weight_at, y_at, workspace, size});
}
}
