/* One micro-batch: its sizes, what goes in and what comes out, and how both lie in a device's buffers. */
#ifndef RH_MODEL_MICRO_H
#define RH_MODEL_MICRO_H

#include <stdint.h>

struct rh_model;

enum { RH_CHUNKS_MOST = 256 }; /* of a text */

/* Sizes of one micro-batch, or the maximum of each size over many. */
struct rh_micro_shape {
	int64_t tokens, documents, longest;
	int64_t head_rows; /* tokens whose logits are needed */
	int64_t keys;      /* tokens whose keys and values attention reads from what layers carry, the last `tokens` of them its own; 0: all
	                    * are its own, and layers carry nothing */
	int64_t first;     /* tokens of the text before these */
	int64_t text_longest; /* of such a text: its longest document */
	int chunk, chunks;    /* a text that is cut travels as so many of these, of which this is number `chunk`; 0, 0: it is whole */
	int64_t choices;      /* vocabulary entries whose logits come back beside the loss */
	int64_t typed;        /* tokens that have a type: all or none */
	int64_t pixels;       /* images: how many numbers each token has, a patch or zeros; else 0 */
	int64_t taught; /* numbers of a teacher that come with each head row: its logits, or twice its top shares; 0: no distillation */
	int64_t judged; /* documents whose log-probabilities the loss is a function of (core/preference.h): all or none; of a chunk, its text's */
	int64_t judged_rows, judged_first; /* of a chunk of such documents: head rows of the text, and of its chunks before this one */
	int64_t row_bytes;                 /* of each token: its row of a wide table (rh_model_row_bytes), which the executor adds */
	int64_t top; /* largest shares of each head row that come back beside the loss, in place of choices; 0: none */
};

/* Chunks of a text have different lengths, so their boundaries take buffers of some classes. */
enum { RH_CHUNK_CLASSES = 8 };
struct rh_chunk_classes {
	int count;                        /* 0: all are of the longest's */
	int64_t tokens[RH_CHUNK_CLASSES]; /* the most of a chunk of each class, descending */
	uint8_t of_chunk[RH_CHUNKS_MOST]; /* the class of chunk number c of any text */
};

/* Of all tokens' pixels. */
static inline int64_t rh_micro_shape_pixel_bytes(const struct rh_micro_shape *shape)
{
	return shape->tokens * shape->pixels * (int64_t)sizeof(float);
}

/* Numbers that come back of each head row beside its loss. */
static inline int64_t rh_micro_shape_scores(const struct rh_micro_shape *shape)
{
	return shape->choices + 2 * shape->top;
}

/* A micro-batch's input lies in one buffer: integers in I32, pixels, a teacher's logits and a reference in F32; and behind them, for the
 * embedding alone and in the model's dtype, what rows of a wide table are multiplied with, and RH_ALIGN bytes further these rows. Arrays
 * are aligned. */
struct rh_micro_layout {
	int64_t ids, position, start_q, start_k, head_row, target, choice, type, pixel, teacher, mix, span, reference,
	        row; /* byte offsets */
	int64_t bytes;
};
struct rh_micro_layout rh_micro_layout(const struct rh_micro_shape *shape);
/* With the rows that the model's embedding reads. */
struct rh_micro_shape rh_micro_shape_of(const struct rh_model *model, const struct rh_micro_shape *shape);

/* Where results lie: loss, hit, then choices, shares or logits (score_cols a head row), then a load where the model has one
 * (model/emit.h). */
struct rh_result_layout {
	int64_t loss, hit, scores, load, bytes;
};
struct rh_result_layout rh_result_layout(const struct rh_model *model, const struct rh_micro_shape *shape, int64_t score_cols);

/* A micro-batch's input, and where its results are to be put (NULL: not wanted). Arrays are borrowed. */
struct rh_micro_batch {
	struct rh_micro_shape shape;
	const int32_t *ids, *position, *start_q, *start_k, *head_row, *target, *choice, *type;
	const float *pixel;          /* (tokens, shape.pixels), where there are any; NULL on simulated devices, which read none */
	const float *teacher, *mix;  /* of HEAD_LOSS: (head_rows, shape.taught) and (head_rows, 2); NULL without a teacher */
	const int32_t *span;         /* (judged, RH_SPANS) of struct rh_judged; NULL where nothing is judged */
	const float *reference;      /* (judged) likewise */
	float *loss;                 /* (head_rows) of judged documents the plain cross-entropies */
	double *load_balancing_loss; /* (1) rh_load_balancing_loss; its mean over a step's micro-batches belongs to the step's loss */
	int32_t *hit;                /* (head_rows) */
	float *scores;               /* (head_rows, score_cols) */
};

/* A micro-batch for simulated devices, which read no integers: each array is `any`. */
static inline struct rh_micro_batch rh_micro_batch_of(struct rh_micro_shape shape, const int32_t *any)
{
	return (struct rh_micro_batch){
	        .shape = shape, .ids = any, .position = any, .start_q = any, .start_k = any, .head_row = any, .target = any, .type = any};
}

/* Packs the input, but for rows of a table, into a buffer laid out by rh_micro_layout; unpacks results to where the batch wants them. */
void rh_micro_pack(const struct rh_micro_batch *batch, char *to);
/* Those rows: of `table`, as devices would read it, the rows of the tokens' ids. */
void rh_micro_pack_rows(const struct rh_model *model, const struct rh_micro_batch *batch, const void *table, char *to);
void rh_result_unpack(const struct rh_model *model, const struct rh_micro_batch *batch, int64_t score_cols, const char *from);

#endif
