/* The activation table: what a layer's backward reads, as rows. A row says what it is, its dtype and size, who makes it and of what. Each
 * layer kind, and each half (half.h), declares its rows in its own file; a row's address follows from layer, shape and fates alone
 * (rh_stage_place). */
#ifndef RH_MODEL_ACTIVATION_H
#define RH_MODEL_ACTIVATION_H

#include "device/op.h"
#include "model/model.h"

enum { RH_HALF_ROWS = 11, RH_MLP_ROWS = 20, RH_PER_LAYER_ROWS = 5 }; /* of a mixer, or a head; of an MLP; of a layer's own input */

/* Which row. A layer has those that its traits ask for. */
enum rh_row {
	RH_ROW_ROPE,                              /* (T, elements rotated) F32 tables of the stage, in its lowest layer */
	RH_ROW_X = RH_ROW_ROPE + RH_ROPES,        /* the layer's input, made by the layer below; a stage's lowest has a boundary instead */
	RH_ROW_NORM,                              /* statistics of norms, by enum rh_norm_place */
	RH_ROW_MADE = RH_ROW_NORM + RH_NORMS,     /* outputs of the halves, where a norm follows them */
	RH_ROW_X2 = RH_ROW_MADE + RH_HALVES,      /* the MLP's input, before its norm */
	RH_ROW_X3,                                /* where a layer has its own input: what it joins */
	RH_ROW_LOW,                               /* (T,r) x A^T of adapted linears */
	RH_ROW_MIXER = RH_ROW_LOW + RH_PROJS,     /* the mixer's own, numbered in its file; a head's likewise */
	RH_ROW_MLP = RH_ROW_MIXER + RH_HALF_ROWS, /* the MLP's own */
	RH_ROW_PER_LAYER = RH_ROW_MLP + RH_MLP_ROWS,         /* likewise, where a layer has its own input */
	RH_ROW_D_LOW = RH_ROW_PER_LAYER + RH_PER_LAYER_ROWS, /* gradients of low activations */
	RH_ROW_INPUT = RH_ROW_D_LOW + RH_PROJS,              /* a half's input as operand of its weight gradients */
	RH_ROW_GRADIENT = RH_ROW_INPUT + RH_HALVES,          /* the gradient of a half's output likewise; an embedding's: the MLP's */
	RH_ACTIVATIONS = RH_ROW_GRADIENT + RH_HALVES
};

/* A set of rows. */
__extension__ typedef unsigned __int128 rh_row_set;
_Static_assert(RH_ACTIVATIONS <= 128, "each has its bit");

/* The set of `count` rows from `first` on; of one row. */
#define RH_ROW_RUN(first, count) ((((rh_row_set)1 << (count)) - 1) << (first))
#define RH_ROW_SET(row)          RH_ROW_RUN(row, 1)

/* What becomes of a row between forward and backward. Rows that are operands of deferred weight gradients are recomputed. */
enum rh_fate {
	RH_FATE_RECOMPUTE, /* made again right before the backward */
	RH_FATE_KEEP,      /* stays on the device */
	RH_FATE_SAVE,      /* goes to host memory and comes back */
	RH_FATES
};

/* The rows of a layer that are kept, and those that are saved; all others are recomputed. No row is in both. */
struct rh_fates {
	rh_row_set kept, saved;
};

static inline enum rh_fate rh_fate_of(const struct rh_fates *fates, int row)
{
	return fates->kept & RH_ROW_SET(row) ? RH_FATE_KEEP : fates->saved & RH_ROW_SET(row) ? RH_FATE_SAVE : RH_FATE_RECOMPUTE;
}

enum rh_maker {
	RH_MAKER_STAGE, /* at its beginning, of the micro-batch's integers */
	RH_MAKER_BELOW, /* the forward of the layer below */
	RH_MAKER_MIXER,
	RH_MAKER_MLP,     /* a head's rows: the head */
	RH_MAKER_BACKWARD /* nothing makes it again */
};

/* What lies beside a stage's activations (struct rh_side) is made of rows of its layers, or came with its input; and rows are made of it,
 * of the same layer or of those above. */
enum rh_row_side { RH_SIDE_NOT, RH_SIDE_TO, RH_SIDE_FROM };

struct rh_activation_row {
	int row; /* enum rh_row, or one of a run that begins there */
	enum rh_dtype dtype;
	int64_t rows, cols;
	enum rh_maker maker;
	rh_row_set from; /* rows of the same layer, below: of the layer below, of which it is made */
	int is_deferred; /* an operand of weight gradients that are deferred */
	enum rh_row_side side;
};

/* A layer's views while its stage is emitted. One struct serves all kinds of layers. */
struct rh_activations {
	rh_row_set placed; /* which views have an address */
	rh_row_set wanted; /* rows that an emission is to make */
	struct rh_view view[RH_ACTIVATIONS];
};

#endif
