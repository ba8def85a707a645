/* Logits by sample id: what a model last made of each sample, kept for another model to distil from. Box 2 of mode fluidpipe fills a table
 * in an epoch, box 1 reads one in the next.
 *
 *   rh_teacher_logits_create(rows of the training set, outputs of the head, &logits);
 *   rh_teacher_logits_put(&logits, id, row);         a later row replaces an earlier one
 *   row = rh_teacher_logits_get(&logits, id);        NULL: the sample has none, and is trained by its label alone
 *   rh_teacher_logits_clear(&logits);                a new epoch
 *
 * A sample's id is its row in struct rh_dataset. A row that data_weights repeats has an id for each copy. Of a language model, whose rows
 * have many targets, each target is a sample of its own here, numbered row by row, and has shares in place of logits. All memory is taken
 * at creation: putting and getting allocate nothing. One thread uses a table at a time. */
#ifndef RH_MODES_FLUIDPIPE_TEACHER_LOGITS_H
#define RH_MODES_FLUIDPIPE_TEACHER_LOGITS_H

#include "core/text.h"

#include <stdint.h>

struct rh_teacher_logits {
	int64_t samples, outputs; /* ids are 0 to samples - 1 */
	int64_t count;            /* samples that have logits */
	int64_t ids;              /* of the head, set by the owner: rows are (outputs / 2) ids below it and their shares; 0: logits */
	float *logit;             /* (samples, outputs) */
	uint8_t *is_known;        /* (samples) */
};

/* Memory of a table, in bytes. */
int64_t rh_teacher_logits_bytes(int64_t samples, int64_t outputs);
int rh_teacher_logits_create(int64_t samples, int64_t outputs, struct rh_teacher_logits *out) RH_MUST;
/* A zeroed table is legal. */
void rh_teacher_logits_destroy(struct rh_teacher_logits *logits);

/* No sample has logits any more. */
void rh_teacher_logits_clear(struct rh_teacher_logits *logits);
int rh_logits_are_finite(const float *row, int64_t outputs);
/* row: (top) ids below `outputs`, ascending, then their shares, which sum to 1 or less: rounded ones to a thousandth more. */
int rh_shares_are_sound(const float *row, int64_t top, int64_t outputs);

/* row: (outputs), copied. 1: it is the sample's now. 0: it is not finite, or not sound, and the sample keeps what it had. -EPROTO: no
 * sample has this id, which a peer may have sent. */
int rh_teacher_logits_put(struct rh_teacher_logits *logits, int64_t id, const float *row) RH_MUST;
/* (outputs), valid until the next put or clear; NULL: the sample has no logits, or there is no sample of this id. */
const float *rh_teacher_logits_get(const struct rh_teacher_logits *logits, int64_t id);

/* Appends a safetensors file as bytes: sample (count) I32, ascending, and logits (count, outputs) F32. */
int rh_teacher_logits_print(const struct rh_teacher_logits *logits, struct rh_text *out) RH_MUST;
/* The table holds what such a file has, and nothing else. -EINVAL: the file is none, or one of other samples or outputs. */
int rh_teacher_logits_load(const char *path, struct rh_teacher_logits *logits) RH_MUST;

#endif
