/* A model as a list of layers (embedding, transformer blocks, final norm + head) and of store blocks (runs of tensors that travel
 * together).
 *
 * Block 0 is the embedding table; a tied head uses it too. Each transformer layer has a base block and, under LoRA, an adapter block; the
 * head has a block with the final norm and, untied, its matrix. Under LoRA adapter blocks are trainable, those of the embedding and of the
 * head among them, and blocks of modules that are trained whole: the embedding, a classifier, or the head's matrix, which then has a block
 * of its own.
 * Tensors that are multiplied together lie together: q, k, v rows follow one another without a gap, and so do gate and up, so that one
 * product computes them all; of experts, each one's gate and up, one expert after the other, and the downs likewise. */
#ifndef RH_MODEL_MODEL_H
#define RH_MODEL_MODEL_H

#include "core/form.h"
#include "core/preference.h"
#include "device/device.h"
#include "model/config.h"
#include "model/traits.h"

/* The adapter to train, resolved from the user's keys or from an existing adapter. */
struct rh_lora_config {
	double dropout;
	/* 0 or negative errno. Rank (0: not targeted) and scale (alpha/r or alpha/sqrt(r)) of a module such as
	 * "model.layers.0.self_attn.q_proj". */
	int (*module)(const void *context, const char *name, int64_t *r, double *scale);
	/* The same of a parameter of experts or of their router, such as "model.layers.0.mlp.experts.down_proj"; NULL: of none. */
	int (*parameter)(const void *context, const char *name, int64_t *r, double *scale);
	/* Is the module, an embedding or a head, trained whole? NULL: none is. */
	int (*saves)(const void *context, const char *name);
	/* Do adapters of the embedding's table and of the head's matrix stay apart from these? 0: who loads the weights adds them. */
	int adapts_tables;
	const void *context;
	int dora; /* each adapted module has magnitudes too */
};

/* The values that a tensor starts from when no file gives them: normal of a standard deviation, uniform in +-bound, one constant, or the
 * logarithm of what is uniform from 0.01 to a bound. */
struct rh_initial {
	enum { RH_INITIAL_NORMAL, RH_INITIAL_UNIFORM, RH_INITIAL_CONSTANT, RH_INITIAL_LOG_UNIFORM } kind;
	float value;
};

/* So many numbers in bf16 add up to any in fp32. */
enum { RH_BF16_PARTS = 3 };
/* Rows (of a vector, elements) that files have group by group: of each of `count` groups part[0] rows, then part[1], and so on. Here the
 * first parts of all groups come first, in the groups' order, then all second ones, and so on. count 0: they lie as here. */
struct rh_row_groups {
	int64_t count, part[4];
};
/* Where row `row` here lies in files, and which row here is row `row` of files; *run: how many rows from there on follow one another in
 * both. */
int64_t rh_row_in_file(const struct rh_row_groups *groups, int64_t row, int64_t *run);
int64_t rh_row_of_file(const struct rh_row_groups *groups, int64_t row, int64_t *run);

/* More than 20 members: its place in a block, and each way in which files differ from that. */
struct rh_tensor {
	char *name;                 /* of its file: "model.norm.weight", or "base_model.model.….lora_A.weight" for an adapter's */
	int64_t rows, cols, offset; /* offset in elements inside its block; a vector has rows 1 */
	int joins;                  /* its rows and those of the tensor before it are one matrix, which products read */
	int decays;                 /* weight decay applies */
	int is_lora_b;              /* an adapter's second matrix, or DoRA's magnitudes: the learning rate may be another (LoRA+) */
	int rank;                   /* in files: 1 or 2 */
	int64_t transposed;    /* how many matrices files hold, each transposed, which here lie one below the other; 0: stored as here */
	int stacked;           /* in files these matrices are one tensor of rank 3 */
	int64_t file_shape[4]; /* its shape in files, where that has more dimensions than `rank`; [0] 0: it does not */
	int64_t interleaved;   /* how many matrices files hold in one, column by column, which here lie one below the other; 0: as here */
	int parts;        /* in files a vector of fp32 numbers, here `rows` rows that add up to it, each number in bf16; never trained */
	struct rh_row_groups groups;
	int64_t head_dim; /* its rows are those of heads of so many rows, which some GGUFs have in another order; 0: they are not */
	struct rh_initial initial;
	int may_pack; /* products ask for it as a matrix (emit_matrix), whatever its form */
	int is_table; /* the embedding's or the head's */
	int may_feed; /* a linear's, of lengths that 8-bit products take (rh_model_pack) */
	/* of a block with packed tensors (rh_model_pack) */
	enum rh_form form;
	int feeds;      /* 8-bit products read it as it is stored; a backward's reads its transpose, which lies where plain matrices do */
	int64_t stored; /* bytes from the block's first, as devices read it */
	int64_t plain;  /* elements from the first of the block's plain matrices; -1: it has no place among them */
	int64_t scaled; /* of a matrix that begins here: bytes from the first of what is made of the block (rh_model_scale); 0: nothing is */
};

/* Two layers use one trained table, and two boxes each hold a copy: which use this box has. */
enum rh_shared { RH_SHARED_NOT, RH_SHARED_BY_EMBEDDING, RH_SHARED_BY_HEAD };

struct rh_block {
	char *name;
	int64_t elements;
	int whole;           /* under LoRA: trained as without it, and saved with the adapter: PEFT's modules_to_save */
	int trainable, uses; /* layers that use it: 1, or 2 when embedding and head are tied */
	int number;          /* in the whole model, of which this may be a box's part */
	int is_wide;         /* a table so wide that, while it is frozen, its rows go to devices with the tokens that name them, and no more */
	enum rh_shared shared;
	struct rh_tensor *tensor;
	int tensors;
	int64_t packed_bytes;   /* of a block with packed tensors: all its bytes as devices read them; 0: each tensor is plain */
	int64_t plain_elements; /* of the plain matrices that a device makes of packed ones */
	int64_t scaled_bytes;   /* of what it makes of the block for `multiply` (rh_model_scale), behind these */
};

/* Does no device have the block? */
static inline int rh_block_stays(const struct rh_block *block)
{
	return block->is_wide && !block->trainable;
}

/* The format of a block's weights as devices read them; `plain` is the model's dtype. Whoever moves or reads them asks here. Gradients,
 * masters and optimizer state are other arrays: they have one number for each element, at the tensors' offsets. */
int64_t rh_block_bytes(const struct rh_block *block, enum rh_dtype plain);
struct rh_tensor_form {
	enum rh_form form;
	enum rh_dtype dtype;   /* of its elements */
	int64_t offset, bytes; /* from the block's first */
};
struct rh_tensor_form rh_block_tensor(const struct rh_block *block, int tensor, enum rh_dtype plain);
/* Bytes of what a device makes of a block once for many products: the plain matrices of packed ones, and what `multiply` asks for; 0: it
 * makes nothing. */
int64_t rh_block_plain_bytes(const struct rh_block *block, enum rh_dtype plain);

/* A linear's place: numbers of its tensors in the layer's base block and adapter block; -1 absent. */
struct rh_linear {
	int64_t inputs, outputs; /* outputs 0: the layer has none */
	int joins;               /* it has the input of the linear before it, and one product makes both: their weights lie back to back */
	int weight, bias;
	int lora_a, lora_b;
	int magnitude;               /* DoRA's; -1: none */
	int64_t r;                   /* 0: no adapter */
	struct rh_row_groups groups; /* of its outputs: rows of its weight, of B and of magnitudes */
	float scale;
	float factor; /* of its product and its adapter's part; 0: 1 */
	int is_exact; /* its products are of bf16 operands, summed in fp32, whatever the model's `multiply` */
	int site;     /* which module of its layer, for dropout's counter */
};

/* The parts of a mixture of experts that may have an adapter. Each expert has its own part of the adapter; the parts lie one below the
 * other, like the experts' matrices. */
enum rh_routed { RH_ROUTED_ROUTER, RH_ROUTED_GATE_UP, RH_ROUTED_DOWN, RH_ROUTED };

enum rh_layer_kind { RH_LAYER_EMBEDDING, RH_LAYER_BLOCK, RH_LAYER_HEAD };
/* Linears: the mixer's are those from MIXER on, the MLP's those from MLP on, with the names that attention and a gated MLP give them. */
enum rh_proj {
	RH_PROJ_MIXER,
	RH_PROJ_Q = RH_PROJ_MIXER,
	RH_PROJ_K,
	RH_PROJ_V,
	RH_PROJ_O,
	RH_PROJ_FIFTH,
	RH_PROJ_MLP,
	RH_PROJ_GATE = RH_PROJ_MLP,
	RH_PROJ_UP,
	RH_PROJ_DOWN,
	RH_PROJ_GATING,         /* of an MLP beside experts: one number a token, whose sigmoid counts; or the experts' router */
	RH_PROJ_PER_LAYER_GATE, /* of the layer's own input; what comes of it; and the inputs of all layers, of which the lowest layer has one */
	RH_PROJ_PER_LAYER_OUT,
	RH_PROJ_PER_LAYER_INPUTS,
	RH_PROJS
};
/* What the family calls it in a layer with this mixer and MLP, or NULL. PER_LAYER_INPUTS is no module of a layer: its name is whole. */
const char *rh_proj_name(const struct rh_family_names *names, enum rh_mixer_kind mixer, enum rh_mlp_kind mlp, int proj);

/* Numbers for dropout's counter: modules of layers one after the other. A mixer's fifth linear, an MLP's fourth and those of
 * layers' own inputs are beyond those of all layers. */
enum { RH_SITES = 7, RH_SITE_FIFTH = RH_SITES * (RH_MOST_LAYERS + 2), RH_SITE_GATING, RH_SITE_PER_LAYER };
/* Those of the model's own dropout lie beyond: of layer l RH_SITE_OWN + RH_OWN_SITES * l + one of these, the halves' own numbers first. */
enum { RH_OWN_ATTENTION = 2, RH_OWN_END, RH_OWN_NOISE, RH_OWN_SITES, RH_SITE_OWN = 1 << 30 };

/* The halves of a transformer layer (half.h), and what some layers have behind them. */
enum rh_half_place { RH_MIXER, RH_MLP, RH_PER_LAYER, RH_HALVES };
enum { RH_HALF_TENSORS = 12 };

/* What a layer keeps from one run of tokens of a text to the next. */
struct rh_carried {
	int64_t columns; /* of each token, in the model's dtype: keys and values */
	int64_t bytes;   /* of the run, however long it is: a recurrent state; a multiple of RH_ALIGN */
	int below;       /* 0: its own; else it reads that of the layer so many below, and adds nothing */
};

/* A layer's norms of whole rows: before its halves and, where the residual is a sandwich, behind them. The head has FINAL. */
enum rh_norm_place {
	RH_NORM_MIXER,
	RH_NORM_MLP,
	RH_NORM_AFTER_MIXER,
	RH_NORM_AFTER_MLP,
	RH_NORM_AFTER_PER_LAYER,
	RH_NORMS,
	RH_NORM_FINAL = RH_NORM_MIXER,
	RH_NORM_DENSE = RH_NORM_MLP /* the head's, behind its dense part */
};

/* What travels beside an activation, in columns: keys and values that layers above read, a lane for each kind of attention, and the
 * inputs of layers above; beside a gradient the sums of their gradients. 0: absent. */
enum { RH_LANES = 2 };
struct rh_side {
	int64_t lane[RH_LANES]; /* keys, and behind them as many columns of values */
	int64_t inputs;         /* those of the next layer first */
};
static inline int64_t rh_side_cols(struct rh_side side)
{
	return side.lane[0] + side.lane[1] + side.inputs;
}

/* A layer's blocks: its base (of the embedding the table, of the head the norm and an untied matrix), its adapter, and of a head a matrix
 * that is the embedding's table, or that has a block of its own, as adapters do not freeze it; of an embedding the table of layers' own
 * inputs. */
enum rh_layer_block { RH_BLOCK_BASE, RH_BLOCK_ADAPTER, RH_BLOCK_TABLE, RH_LAYER_BLOCKS };

/* More than 20 members: each kind of layer has its own tensors. */
struct rh_layer {
	enum rh_layer_kind kind;
	int block[RH_LAYER_BLOCKS]; /* -1 absent */
	int use[RH_LAYER_BLOCKS];   /* which of the block's gradient sums this layer's gradients go to */
	struct rh_traits traits;
	int64_t width;          /* columns of the activations that it reads and writes */
	struct rh_side side[2]; /* beside what it reads, and beside what it writes */
	/* numbers of tensors in the base block, -1 absent */
	int norm[RH_NORMS]; /* of a LayerNorm the bias is the next tensor */
	/* kind EMBEDDING: (positions,H), (types,H); norm[RH_NORM_FINAL] is over the sum. Of images proj[RH_PROJ_O] is the patches' linear. */
	int positions, types;
	/* kind BLOCK */
	struct rh_linear proj[RH_PROJS];
	int scalar;                          /* of its output, -1 absent */
	int own[RH_HALVES][RH_HALF_TENSORS]; /* tensors beside those of linears, numbered in the half's file */
	struct rh_linear routed[RH_ROUTED];  /* of one expert: in, out and its adapter; weight and bias are in `own` */
	struct rh_carried carried;
	/* kinds EMBEDDING and HEAD: the adapter of the table. The embedding's A is (vocabulary, r) here, its B (width, r); of a tied table the
	 * head's A is that B transposed, its B that A (rh_head_shares_adapter). */
	struct rh_linear on_table;
	/* kind HEAD */
	int head;              /* in block[table] */
	int head_bias;         /* in block[bias_table], -1 absent; proj[RH_PROJ_O] is the dense part, if it has an out */
	int table, bias_table; /* RH_BLOCK_BASE or RH_BLOCK_TABLE */
};

static inline int rh_layer_has_block(const struct rh_layer *layer, int block)
{
	int has = 0;
	for (int which = 0; which < RH_LAYER_BLOCKS; which++)
		has |= layer->block[which] == block;
	return has;
}
static inline int rh_head_shares_adapter(const struct rh_layer *head)
{
	return head->use[RH_BLOCK_ADAPTER];
}

/* How the products of linears, y, dx and dW, are made of bf16 operands; adapters', the head's and attention's are always summed in fp32. */
enum rh_multiply {
	RH_MULTIPLY_BF16,     /* summed in fp32 */
	RH_MULTIPLY_F16_SUMS, /* summed in fp16 over `chunk` of k, chunks in fp32 */
	RH_MULTIPLY_F8        /* of 8-bit operands, summed in fp32 */
};

/* How a head learns from a teacher's logits (HEAD_LOSS of device/op.h). */
struct rh_distillation {
	float temperature;
	enum rh_divergence divergence;
	int64_t top; /* shares that a teacher tells of each row; 0: all its logits */
};

/* More than 20 members: counts and choices that hold for all layers. */
struct rh_model {
	const struct rh_model_config *config; /* borrowed */
	enum rh_dtype dtype;
	int lora, dora;
	float dropout;                /* of adapters' inputs, in training */
	struct rh_model_dropout drop; /* of its own, in training: zeros, unless the run applies its configuration's */
	enum rh_multiply multiply;    /* set after creation, before anything is emitted; other than BF16 with dtype BF16 alone */
	int64_t chunk;
	int saves_narrow; /* layers' inputs lie in 8 bits between forward and backward (stage_plan.h); set as `multiply` is */
	int64_t head_rows, head_rows_wanted; /* rows of logits made at once, 0: few; and the number that rh_model_cut wanted */
	int has_attention_space;             /* this and the next two as of struct rh_device_grain */
	double attention_flops, plain_attention_flops;
	float router_aux_loss_coef; /* of a mixture of experts' load balancing loss (emit.h), 0: none; set as `multiply` is */
	struct rh_block *block;
	int blocks;
	struct rh_layer *layer; /* of the whole model [0] embedding, [layers-1] head */
	int layers;
	int routed_layers;                   /* of the whole model, those that have experts */
	int first_layer;                     /* the number of layer[0] in the whole model: of a box's part (rh_model_keep) not always 0 */
	int first_trained;                   /* lowest layer that has a trainable block; below 0: one in another box */
	int tap;                             /* the layer whose input another box gets, too (mode fluidpipe); 0: none */
	struct rh_distillation distillation; /* for micro-batches that have a teacher's logits; set like `multiply` */
	struct rh_preference preference;     /* for micro-batches whose documents are judged; set like `multiply` */
	int ropes;                           /* rope tables in use; each has a version for short and one for long micro-batches */
	struct rh_rope_table rope[RH_ROPES][2];
};

/* `lora` NULL: every parameter is trained. -EINVAL if LoRA targets no module. */
int rh_model_create(const struct rh_model_config *config, enum rh_dtype dtype, const struct rh_lora_config *lora,
                    struct rh_model **out) RH_MUST;
void rh_model_destroy(struct rh_model *model);
/* How many projections cannot have `multiply`, because a length is no multiple of 16 (of 8 with fp16 sums): they stay in bf16. */
int64_t rh_model_unfit(const struct rh_model *model);
/* Sets sizes of ops to what devices want: after creation and rh_model_freeze, before anything is emitted. */
void rh_model_cut(struct rh_model *model, const struct rh_device_grain *grain);
/* Makes fewer rows of logits at once, for devices that lack the memory. 0: they cannot be fewer. */
int rh_model_cut_finer(struct rh_model *model);
/* Excludes the embedding's tables, and a head that is one of them, from weight decay. After creation, or after rh_model_keep. */
void rh_model_spare_embeddings(struct rh_model *model);
/* Keeps only layers [lo, hi), which become layers 0 to hi - lo, and their blocks: the part that one of several boxes holds. A tied table
 * stays where either of its uses does, and `uses` still counts both; where one use is gone and the table is trained, it is `shared`.
 * After creation. */
void rh_model_keep(struct rh_model *model, int lo, int hi);
/* The block that is shared with another box, -1: none; and the use that is this box's: an embedding's is 0, a head's 1. */
int rh_model_shared_block(const struct rh_model *model);
static inline int rh_shared_use(enum rh_shared shared)
{
	return shared == RH_SHARED_BY_HEAD;
}
/* Keeps the layers from `lo` on; their input is data, so no gradient leaves them. */
void rh_model_keep_above(struct rh_model *model, int lo);
/* Keeps only trainable blocks: to read and write their files, not to run. */
void rh_model_keep_trained(struct rh_model *model);
static inline int rh_model_has_embedding(const struct rh_model *model)
{
	return model->layer[0].kind == RH_LAYER_EMBEDDING;
}
static inline int rh_model_has_head(const struct rh_model *model)
{
	return model->layer[model->layers - 1].kind == RH_LAYER_HEAD;
}
/* The block of the embedding's table; of a box without an embedding its lowest layer's. */
static inline int rh_model_table(const struct rh_model *model)
{
	return model->layer[0].block[RH_BLOCK_BASE];
}
/* Does the embedding's backward read weights? Where a norm is over the sum of its tables, that sum is made again; and an adapter's
 * gradients are made of its own. */
static inline int rh_model_embedding_reads_back(const struct rh_model *model)
{
	const struct rh_layer *embedding = &model->layer[0];
	return embedding->norm[RH_NORM_FINAL] >= 0 || embedding->block[RH_BLOCK_ADAPTER] >= 0 || model->config->family->norms_embedding;
}
/* Bytes of a row of the table whose rows go with the tokens that name them; 0: the model, or this part of it, has none. */
static inline int64_t rh_model_row_bytes(const struct rh_model *model)
{
	int b = rh_model_has_embedding(model) ? model->layer[0].block[RH_BLOCK_TABLE] : -1;
	return b >= 0 && rh_block_stays(&model->block[b]) ? rh_dtype_bytes(model->dtype, model->block[b].tensor[0].cols) : 0;
}
/* What rows of layers' own inputs are multiplied with: the root of each one's length, rounded to the weights' dtype (head.c). */
float rh_model_inputs_scale(const struct rh_model *model);
/* Is the model one box's part of a larger one? */
static inline int rh_model_is_part(const struct rh_model *model)
{
	return !rh_model_has_embedding(model) || !rh_model_has_head(model);
}
/* The boundary where this box's part meets that of the box below, or of the lowest box that of the one above. */
static inline int rh_model_meeting(const struct rh_model *model)
{
	return !rh_model_has_embedding(model) ? 0 : model->tap ? model->tap : model->layers;
}
/* Is a table trained that is both the embedding's and the head's? */
static inline int rh_model_trains_tied(const struct rh_model *model)
{
	int trains = 0;
	for (int b = 0; b < model->blocks; b++)
		trains |= model->block[b].trainable && model->block[b].uses > 1;
	return trains;
}
/* Makes no block trainable: for a model that only infers. */
void rh_model_freeze(struct rh_model *model);
/* Gives matrices of frozen blocks the forms that `form` has for them, where products can read them so; FP8_JOINT only of tensors that may
 * feed, and where all that one product reads have it (else it asks once more, and none may feed). After rh_model_freeze and once `multiply`
 * is set; before anything is planned or emitted. */
void rh_model_pack(struct rh_model *model, enum rh_form (*form)(const void *context, const struct rh_tensor *tensor), const void *context);
/* Is any tensor packed? */
int rh_model_is_packed(const struct rh_model *model);
/* Gives the matrices of linears a place for what `multiply` makes of them once for all micro-batches: with 8-bit operands both forms, as
 * the matrix lies and transposed, and its scale; with fp16 sums the scale. After rh_model_pack and once `multiply` is set. */
void rh_model_scale(struct rh_model *model);
/* Must a device make plain matrices or prepare weights of some block (rh_block_plain_bytes), so that a stage may need room for them?
 * Scales alone need none. */
int rh_model_makes_plain(const struct rh_model *model);
/* Of which block a layer reads what was made, `which` an enum rh_layer_block; -1: of none. The embedding reads rows of packed
 * tables as they are. */
int rh_model_plain_block(const struct rh_model *model, int layer, int which);

/* Do two layers emit the same ops with the same parameters? The tensors that they read and write may differ. IN_BYTES also allows a
 * different attention window and another rope table: such layers differ in time, but take the same memory. */
enum rh_alike { RH_ALIKE_IN_OPS, RH_ALIKE_IN_BYTES };
int rh_layers_alike(const struct rh_model *model, int a, int b, enum rh_alike in);

/* The bytes that mixers of layers [lo, hi) carry, for so many rows (tokens), and where they begin among those of all layers; with those of
 * lower layers that they read. A layer's own begin on RH_ALIGN. */
int64_t rh_model_cache_range(const struct rh_model *model, int lo, int hi, int64_t rows, int64_t *first);

/* What a backward slot has behind those bytes, of texts of at most so many rows and chunks: fp32 sums of the gradients of keys and values;
 * of a recurrent state, whose gradient takes its own place, the states before the chunks but the first. */
int64_t rh_model_carried_back_bytes(const struct rh_model *model, int lo, int hi, int64_t rows, int chunks);
/* Layers of [lo, hi) that carry something of a text in chunks. */
int rh_model_carriers(const struct rh_model *model, int lo, int hi);
/* Its loss is one over answers. Of a text in chunks its head then carries each row's cross-entropy. Dropout is off, as in TRL. */
void rh_model_judge(struct rh_model *model, const struct rh_preference *preference);

/* Elements of all trainable tensors, and of all (a tied table counts once; gaps do not). */
void rh_model_parameters(const struct rh_model *model, int64_t *trainable, int64_t *all);

/* The values a tensor starts from when no file gives them (struct rh_initial): weights normal(0, initializer_range), of GPT-2 those of
 * c_proj divided by the root of twice the layers; norms 1, biases 0; lora_A Kaiming-uniform (a = sqrt 5, so uniform in +-1/sqrt(in)),
 * lora_B 0. A function of (seed, block, tensor, element). (count) values from element `first`. */
void rh_model_initial(const struct rh_model *model, uint64_t seed, int block, int tensor, int64_t first, int64_t count, float *out);

#endif
