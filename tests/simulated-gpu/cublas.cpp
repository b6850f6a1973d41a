// libcublas: products of matrices. Its matrices lie column by column.

#include <cublas_v2.h>

#include "handle.h"
#include "numbers.h"

// One operand of a product; after `op`, [rows, columns].
struct Matrix {
    const void *place;
    cublasOperation_t op;
    int leading;
    long long stride;
};

struct Product {
    int m, n, k, batch, device;
    Type type;
    bool tf32;
};

// op(matrix)ᵀ, row by row: column by column is the same, transposed.
template <class Sum>
static bool transposed(const Product &product, const Matrix &matrix, int rows, int columns, int number,
                       std::vector<Sum> &into) {
    bool plain = matrix.op == CUBLAS_OP_N;
    int stored_rows = plain ? rows : columns, stored_columns = plain ? columns : rows;
    size_t bytes = width(product.type);
    auto *place = (const char *)matrix.place + number * matrix.stride * (long long)bytes;
    if (matrix.leading < stored_rows) {
        simulated_fault("cuBLAS: a leading dimension of %d for %d rows", matrix.leading, stored_rows);
        return false;
    }
    for (int column = 0; column < stored_columns; column++) {
        auto *start = place + (size_t)column * matrix.leading * bytes;
        if (!simulated_access(product.device, start, stored_rows * bytes, Access::read, "cuBLAS")) return false;
    }
    into.resize((size_t)rows * columns);
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < columns; column++) {
            size_t at = plain ? (size_t)column * matrix.leading + row : (size_t)row * matrix.leading + column;
            Sum value = get<Sum>(place, product.type, at);
            into[(size_t)column * rows + row] = product.tf32 ? (Sum)as_tf32((float)value) : value;
        }
    return true;
}

template <class Sum>
static void compute(const Product &product, Sum alpha, const Matrix &a, const Matrix &b, Sum beta, const Matrix &c) {
    const auto [m, n, k, batch, device, type, tf32] = product;
    for (int number = 0; number < batch; number++) {
        std::vector<Sum> left, right, sums((size_t)m * n, 0);
        if (!transposed(product, a, m, k, number, left) || !transposed(product, b, k, n, number, right)) return;
        multiply<Sum>(n, m, k, right.data(), left.data(), sums.data());
        auto *place = (char *)c.place + number * c.stride * (long long)width(type);
        for (int column = 0; column < n; column++) {
            auto *start = place + (size_t)column * c.leading * width(type);
            if (beta != 0 && !simulated_access(device, start, m * width(type), Access::read, "cuBLAS")) return;
            if (!simulated_access(device, start, m * width(type), Access::write, "cuBLAS")) return;
            for (int row = 0; row < m; row++) {
                Sum old = beta == 0 ? 0 : beta * get<Sum>(start, type, row);
                put<Sum>(start, type, row, alpha * sums[(size_t)column * m + row] + old);
            }
        }
    }
}

template <class Sum>
static cublasStatus_t queue(Handle *handle, Product product, Sum alpha, Matrix a, Matrix b, Sum beta, Matrix c) {
    product.device = handle->device;
    if (!handle->ready("cuBLAS")) return CUBLAS_STATUS_EXECUTION_FAILED;
    simulated_queue(handle->stream, [=] {
        compute<Sum>(product, alpha, a, b, beta, c);
    });
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    return open(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    delete (Handle *)handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    ((Handle *)handle)->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                                         int k, const double *alpha, const double *a, int leading_a, long long stride_a,
                                         const double *b, int leading_b, long long stride_b, const double *beta, double *c,
                                         int leading_c, long long stride_c, int batch) {
    return queue<double>((Handle *)handle, {m, n, k, batch, 0, Type::f64, false}, *alpha, {a, op_a, leading_a, stride_a},
                         {b, op_b, leading_b, stride_b}, *beta, {c, CUBLAS_OP_N, leading_c, stride_c});
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                                          int k, const void *alpha, const void *a, cudaDataType type_a, int leading_a,
                                          long long stride_a, const void *b, cudaDataType type_b, int leading_b,
                                          long long stride_b, const void *beta, void *c, cudaDataType type_c, int leading_c,
                                          long long stride_c, int batch, cublasComputeType_t sums, cublasGemmAlgo_t) {
    bool tf32 = sums == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (type_a != type_b || type_a != type_c || (type_a != CUDA_R_32F && type_a != CUDA_R_16BF) ||
        (sums != CUBLAS_COMPUTE_32F && !tf32))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    Type type = type_a == CUDA_R_32F ? Type::f32 : Type::bf16;
    return queue<float>((Handle *)handle, {m, n, k, batch, 0, type, tf32}, *(const float *)alpha,
                        {a, op_a, leading_a, stride_a}, {b, op_b, leading_b, stride_b}, *(const float *)beta,
                        {c, CUBLAS_OP_N, leading_c, stride_c});
}
}
