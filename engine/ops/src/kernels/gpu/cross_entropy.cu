// Cross-entropy, summed over the batch. One thread computes a row of logits.

#define INFINITE __int_as_float(0x7f800000)

// The numbers of a row that the GPUs gather, each with the logits of some classes. A single GPU has all of them.
enum Statistic { LARGEST, INDEX, SUM, AT_LABEL, STATISTICS };

// A NaN is larger than every number.
__device__ inline bool is_larger(Real a, Real b) { return a > b || (a != a && b == b); }

// The index of a row's largest logit, the first of equal ones.
__device__ inline Count answer_of(const Stored *row, Count classes) {
    Count answer = 0;
    for (Count class_ = 1; class_ < classes; class_++)
        if (is_larger(real(row[class_]), real(row[answer]))) answer = class_;
    return answer;
}

// Writes the statistics of each row, for the classes from `first` on.
KERNEL row_statistics(
    Count rows, Count classes, const Stored *logits, const unsigned *labels, Count first, Stored *statistics
) {
    FOR_EACH(i, rows) {
        const Stored *row = logits + i * classes;
        Stored *of_row = statistics + i * STATISTICS;
        Count answer = answer_of(row, classes), label = labels[i] - first;
        Real sum = 0;
        for (Count class_ = 0; class_ < classes; class_++) sum += exp(real(row[class_]) - real(row[answer]));
        of_row[LARGEST] = row[answer];
        of_row[INDEX] = stored(first + answer);
        of_row[SUM] = stored(sum);
        of_row[AT_LABEL] = label < classes ? row[label] : stored(-INFINITE);
    }
}

// The statistics of a row, [parts, rows, STATISTICS], and a row's normaliser over all parts.
struct Gathered {
    const Stored *all;
    Count parts, rows, row;
    Real largest, sum;

    __device__ Gathered(Count parts, Count rows, Count row, const Stored *all)
        : all(all), parts(parts), rows(rows), row(row), largest(maximum(LARGEST)), sum(0) {
        // A part without a possible class adds nothing.
        for (Count part = 0; part < parts; part++)
            if (at(part, LARGEST) != -INFINITE) sum += at(part, SUM) * exp(at(part, LARGEST) - largest);
    }

    __device__ Real at(Count part, Statistic of) const { return real(all[(part * rows + row) * STATISTICS + of]); }

    // The largest number, and a NaN is none.
    __device__ Real maximum(Statistic of) const {
        Real maximum = -INFINITE;
        for (Count part = 0; part < parts; part++)
            if (at(part, of) > maximum) maximum = at(part, of);
        return maximum;
    }
};

// Runs as one block. A label that is not below the number of classes makes the loss NaN.
KERNEL loss_of_parts(
    Count parts, Count rows, const Stored *all, const unsigned *labels, Count classes, Stored *loss
) {
    double sum = 0;
    FOR_EACH(i, rows) {
        Gathered row(parts, rows, i, all);
        Real at_label = labels[i] < classes ? row.maximum(AT_LABEL) : (Real)nan("");
        sum += log(row.sum) - (at_label - row.largest);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) *loss = stored(sum);
}

KERNEL gradient_of_part(
    Count rows, Count classes, const Stored *logits, const unsigned *labels, Count first, Count parts, const Stored *all,
    const Stored *upstream, Stored *dlogits
) {
    FOR_EACH(i, rows) {
        Gathered row(parts, rows, i, all);
        for (Count class_ = 0; class_ < classes; class_++) {
            Real softmax = exp(real(logits[i * classes + class_]) - row.largest) / row.sum;
            Real target = first + class_ == labels[i] ? 1 : 0;
            dlogits[i * classes + class_] = stored(real(*upstream) * (softmax - target));
        }
    }
}

// Runs as one block. Returns the loss and the number of rows with their largest logit, the first of equal ones, at the label.
KERNEL loss_and_correct_of_parts(
    Count parts, Count rows, const Stored *all, const unsigned *labels, const Stored *loss, double *sums
) {
    double sum = 0;
    FOR_EACH(i, rows) {
        Gathered row(parts, rows, i, all);
        Count answer = 0;
        for (Count part = 1; part < parts; part++)
            if (is_larger(row.at(part, LARGEST), row.at(answer, LARGEST))) answer = part;
        sum += row.at(answer, INDEX) == labels[i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        sums[0] = real(*loss);
        sums[1] = sum;
    }
}
