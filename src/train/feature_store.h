/* Box 2 of mode fluidpipe: the samples that it has received in this epoch, so that idle time can train on them again. A sample's entry is
 * what the layers below made of it, its positions, and its targets.
 *
 * A ring of bytes that is taken once. Where an entry finds no room, the entries that were put first go (they are evicted). */
#ifndef RH_TRAIN_FEATURE_STORE_H
#define RH_TRAIN_FEATURE_STORE_H

#include "data/dataset.h"

struct rh_feature_store;

/* samples: ids are 0 to samples - 1. token_bytes: features of a token. budget_bytes: of all entries; rh_feature_store_bytes adds the
 * index. */
int rh_feature_store_create(int64_t samples, int64_t token_bytes, int64_t budget_bytes, struct rh_feature_store **out) RH_MUST;
void rh_feature_store_free(struct rh_feature_store *store);
int64_t rh_feature_store_bytes(int64_t samples, int64_t budget_bytes);

/* A new epoch: nothing has been received. */
void rh_feature_store_clear(struct rh_feature_store *store);

/* Document `document` of a micro-batch becomes the entry of a sample that has none. features: (tokens, token_bytes) of the whole
 * micro-batch. evicted: called for each sample that has no entry any more. 1: kept; 0: it is larger than the whole ring. */
int rh_feature_store_put(struct rh_feature_store *store, int64_t sample, const struct rh_batch *batch, int64_t document,
                         const void *features, void (*evicted)(void *context, int64_t sample), void *context);
int rh_feature_store_has(const struct rh_feature_store *store, int64_t sample);

/* Makes a micro-batch of the entries of these samples, all of which are there. batch: has room for them; ids become 0, as no layer here
 * reads them. features: (batch->tokens, token_bytes), with room for as many tokens. */
void rh_feature_store_make(const struct rh_feature_store *store, const int64_t *sample, int64_t count, struct rh_batch *batch,
                           void *features);

#endif
