/* A cache of the algorithms that cuBLASLt's heuristic search has chosen, by kind of product. A hit saves the host 20 to 100 us. */
#ifndef RH_CUDA_CHOICES_H
#define RH_CUDA_CHOICES_H

#include "cuda/blas.h"

/* What the choice of an algorithm may depend on; compared as bytes. */
struct choice_key {
	int64_t m, n, k, lda, ldb, ldc, ldd;
	int32_t trans_a, trans_b, type_a, type_b, output, adds, in_place, has_bias;
	int32_t alignment[5]; /* of a, b, c, d and the bias, in bytes */
	int32_t unused;
};
struct choice_key choice_key_of(const struct blas_product *product);

enum { CHOICE_BYTES = 64 }; /* of an algorithm */

/* Sets of CHOICE_WAYS places; a key may stand in either of two sets, so that the table is nearly full before anything is evicted. Unpacked
 * rows make a new shape of each number of tokens, with some 25 products: 2200 numbers fit, and of more the least recently used go. Memory
 * is touched as sets fill: 12 MiB at most. */
enum { CHOICE_SETS = 4096, CHOICE_WAYS = 16 };

struct choices;
struct choices *choices_create(void); /* NULL: no memory; the line is made */
void choices_destroy(struct choices *choices);

/* The place of the algorithm for such products, CHOICE_BYTES. *known 0: it is empty, and the caller stores one or calls choices_forget.
 * Valid until the next call. */
void *choices_find(struct choices *choices, const struct choice_key *key, int *known);
void choices_forget(struct choices *choices, const struct choice_key *key);

/* Look-ups that found no algorithm (cuBLASLt was then asked), and entries that were evicted. */
int64_t choices_misses(const struct choices *choices);
int64_t choices_evicted(const struct choices *choices);

#endif
