// Cross-entropy, summed over the batch. One thread computes a row of logits.

// A row's largest logit, and the sum of exp(logit − largest).
struct Normaliser {
    Real largest, sum;

    __device__ Normaliser(const Stored *row, Count classes) : largest(real(row[0])), sum(0) {
        for (Count class_ = 1; class_ < classes; class_++)
            if (real(row[class_]) > largest) largest = real(row[class_]);
        for (Count class_ = 0; class_ < classes; class_++) sum += exp(real(row[class_]) - largest);
    }
};

// Runs as one block. A label that is not below the number of classes makes the loss NaN.
KERNEL cross_entropy(Count rows, Count classes, const Stored *logits, const unsigned *labels, Stored *loss) {
    double sum = 0;
    FOR_EACH(i, rows) {
        const Stored *row = logits + i * classes;
        Normaliser normaliser(row, classes);
        Real at_label = labels[i] < classes ? real(row[labels[i]]) : (Real)nan("");
        sum += log(normaliser.sum) - (at_label - normaliser.largest);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) *loss = stored(sum);
}

KERNEL cross_entropy_gradient(
    Count rows, Count classes, const Stored *logits, const unsigned *labels, const Stored *upstream, Stored *dlogits
) {
    FOR_EACH(i, rows) {
        const Stored *row = logits + i * classes;
        Normaliser normaliser(row, classes);
        for (Count class_ = 0; class_ < classes; class_++) {
            Real softmax = exp(real(row[class_]) - normaliser.largest) / normaliser.sum;
            dlogits[i * classes + class_] = stored(real(*upstream) * (softmax - (class_ == labels[i] ? 1 : 0)));
        }
    }
}

// A NaN is larger than every number.
__device__ inline bool is_larger(Real a, Real b) { return a > b || (a != a && b == b); }

// Runs as one block. Returns the loss and the number of rows with their largest logit, the first of equal ones, at the label.
KERNEL loss_and_correct(
    Count rows, Count classes, const Stored *logits, const unsigned *labels, const Stored *loss, double *sums
) {
    double sum = 0;
    FOR_EACH(i, rows) {
        const Stored *row = logits + i * classes;
        Count answer = 0;
        for (Count class_ = 1; class_ < classes; class_++)
            if (is_larger(real(row[class_]), real(row[answer]))) answer = class_;
        sum += answer == labels[i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        sums[0] = real(*loss);
        sums[1] = sum;
    }
}
