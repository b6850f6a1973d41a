// The embedding: a row of a table for each token. A rank may have the rows from `first` on only.

// A token of another rank gets zeros, and a token that is not in the vocabulary gets NaN.
KERNEL embedding(
    Count n, Count features, Count rows, Count first, Count vocabulary, const unsigned *tokens, const Stored *table, Stored *y
) {
    FOR_EACH(i, n) {
        Count token = tokens[i / features], row = token - first;
        Real other = token < vocabulary ? 0 : (Real)nan("");
        y[i] = row < rows ? table[row * features + i % features] : stored(other);
    }
}

// A thread adds up the gradients of one number of the table, in the order of the tokens.
KERNEL embedding_gradient(
    Count n, Count features, Count count, Count first, const unsigned *tokens, const Stored *dy, Stored *dtable
) {
    FOR_EACH(i, n) {
        Count token = first + i / features;
        Real sum = 0;
        for (Count place = 0; place < count; place++)
            if (tokens[place] == token) sum += real(dy[place * features + i % features]);
        dtable[i] = stored(sum);
    }
}
