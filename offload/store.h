/* The host store: layer blocks and all that training keeps of them.
 *
 * A block is a run of tensors that travel together. All its arrays share one element layout, given by the tensors' offsets; the gaps hold
 * zeros. A frozen block holds only its upload form, whose bytes the model lays out (rh_block_tensor): tensors of the store's dtype, and
 * packed ones (core/form.h), whose bytes the store moves as they are. A trainable block of dtype
 *   F32:  master (= upload form) 4, optimizer state, gradient 4;
 *   BF16: upload form 2 (the master rounded half away from zero), gradient 2, optimizer state, and
 *         split, split8: the master's lower half 2, its upper half being the upload form; plain: the fp32 master 4.
 * Optimizer state in bytes an element: AdamW 8, or 2 + 8/256 in 8 bits (split8); Lion 4; SGD 0, with momentum 4; Adafactor a float for each
 * row and each column of a matrix, 4 for each element of a vector.
 * Published copies add 4 (F32) or 2 (BF16), and so does each older version in the stash.
 * A block used by two layers (a tied embedding and head) keeps an fp32 sum for use 1, the head; every trainable block keeps one for use 0
 * while its sums cross rounds. A block that is shared with another box keeps both: the sum of the use that this box lacks comes from there.
 * (In one round the embedding's sum is added to the head's as it comes down: rh_store_add_use.) Arrays share
 * bytes where one is dead when the other is written: in F32 the gradient is a sum; in BF16 with one use the gradient lies in its sum's
 * first half, so that the last round's download replaces the sum that the device has uploaded by then. BF16 with two uses has sums and
 * gradient apart.
 *
 * What is spilled (of a trainable block moments and 8-bit codes, lower halves and fp32 masters; a frozen block's weights) has its place on
 * NVMe instead, in pieces that come into a small cache of host memory when they are needed: see spill.c, cache.c. The rest of the state
 * (scales of 8-bit moments, Adafactor's factors) stays. */
#ifndef RH_OFFLOAD_STORE_H
#define RH_OFFLOAD_STORE_H

#include "config/optim.h"
#include "config/spill.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/pool.h"
#include "device/device.h"
#include "model/model.h"
#include "offload/space.h"

enum { RH_STORE_FROZEN_PARTS = 64 };

struct rh_store_options {
	enum rh_dtype dtype;         /* RH_F32 or RH_BF16 */
	int crosses_rounds;          /* sums are kept between rounds */
	enum rh_state_layout layout; /* BF16; SPLIT8 with AdamW only */
	enum rh_optim optim;
	int momentum;       /* SGD keeps one */
	int addresses_only; /* no bytes behind them, for devices that touch no data: updates and publishing change versions alone */
	int published;      /* devices read a second copy of trainable blocks' upload form, rh_store_publish: for asynchronous updates */
	int stash;          /* how many older versions of trainable blocks' upload form are kept: rh_store_stash */
	int spill;          /* bits of enum rh_spill: OPTIMIZER, MASTERS, WEIGHTS; others are not the store's */
	int frozen_share;   /* with WEIGHTS: of RH_STORE_FROZEN_PARTS frozen blocks so many are spilled, spread evenly; 0: all */
	struct rh_space *space;          /* borrowed; holds what is spilled. NULL: nothing is */
	struct rh_device *const *device; /* the devices that will upload: frozen weights lie near them. Only rh_store_create reads this */
	int devices;                     /* 0: not known */
};

struct rh_store;

/* Exact bytes that rh_store_create will map for these blocks: arrays, the cache for what is spilled and its checksums (8 bytes for each
 * array of each 32768 elements of a tensor), the optimizer's table of spans (32 bytes for each of these) and what Adafactor works in, each
 * aligned to RH_ALIGN, the whole rounded up to a page.
 * INT64_MAX if no machine could. */
int64_t rh_store_bytes(const struct rh_block *blocks, int count, const struct rh_store_options *options);
/* Exact bytes of NVMe that it will take of the space. Each step reads and writes masters and state once; setting all weights writes the
 * frozen ones and masters, setting all state writes state: once where blocks and tensors come in their order (of state: all of a block's
 * first array, then of the next), besides the little that stays in the cache. */
struct rh_store_nvme {
	int64_t frozen, masters, state;
};
struct rh_store_nvme rh_store_nvme(const struct rh_block *blocks, int count, const struct rh_store_options *options);
/* Bytes of a page of frozen weights on NVMe: a multiple of the space's unit; 0 where there are none. */
int64_t rh_store_page_bytes(const struct rh_block *blocks, int count, const struct rh_store_options *options);

/* Maps everything at once; blocks (and the names and tensors behind them) and the pool are borrowed until rh_store_destroy. A block's
 * tensors ascend without overlap. All arrays start at zero. What is spilled is usable once the caller has called rh_space_reserve.
 * Tests lower the instruction set: see RH_HOOK_CPU_ISA. -ENOMEM, or mmap's error. */
int rh_store_create(const struct rh_block *blocks, int count, const struct rh_store_options *options, struct rh_pool *pool,
                    struct rh_store **out) RH_MUST;
void rh_store_destroy(struct rh_store *store);

/* Limits the threads that update from now on; 0: all. While weights stream, this leaves them more of the memory's bandwidth. */
void rh_store_throttle(struct rh_store *store, int threads);

/* The one mapping that holds all arrays in memory: for devices to pin. */
void *rh_store_memory(const struct rh_store *store, int64_t *bytes);

int rh_store_blocks(const struct rh_store *store);
const struct rh_block *rh_store_block(const struct rh_store *store, int block);

/* What devices upload: rh_block_bytes. NULL for a frozen block on NVMe. */
const void *rh_store_weights(const struct rh_store *store, int block);
/* A number that changes whenever the weights change: equal versions mean equal bytes. Never 0. */
uint64_t rh_store_version(const struct rh_store *store, int block);
/* A frozen block on NVMe lies in records of the space, one a page of its weights, one after the other; returns the first. -1: the block
 * is in memory. */
int rh_store_pages(const struct rh_store *store, int block);
/* Writes everything that was set to NVMe: from then on others may read it there. */
int rh_store_settle(struct rh_store *store) RH_MUST;
/* Copies a block's newest weights to where devices read them, if an update has changed them since the last copy. No device may be
 * reading the block. Does nothing without the option `published`. */
void rh_store_publish(struct rh_store *store, int block);
/* 1: the block has been updated since it was published. */
int rh_store_is_behind(const struct rh_store *store, int block);
/* Call it before each update of a block. Copies the block's weights into the stash, over the version that was put there `stash` calls
 * before; no device may be reading that. Does nothing without the option `stash`. */
void rh_store_stash(struct rh_store *store, int block);
/* The version that the number-th call of rh_store_stash put there, from 0; one of the last `stash`. */
const void *rh_store_stashed(const struct rh_store *store, int block, int64_t number);
/* Elements [first, first+count) of a tensor in the published copy, in the store's dtype, for checkpoints. Setting them leaves the newest
 * weights as they are; the block then counts as not yet published. */
int rh_store_published_get(const struct rh_store *store, int block, int tensor, int64_t first, int64_t count, void *values) RH_MUST;
int rh_store_published_set(struct rh_store *store, int block, int tensor, int64_t first, int64_t count, const void *values) RH_MUST;

/* Where devices download: the stored gradient (elements) of the store's dtype, or NULL for a frozen block; and the fp32 running sum
 * (elements) of one use, or NULL where none is kept. */
void *rh_store_gradient(const struct rh_store *store, int block);
float *rh_store_sum(const struct rh_store *store, int block, int use);
/* The use whose sum lends a trainable block's gradient its bytes; -1: the gradient has its own. */
int rh_store_gradient_use(const struct rh_block *block, enum rh_dtype dtype, int crosses_rounds);
/* A block of one matrix and one use whose gradient comes elsewhere, as some of its rows: _by_rows once, before the first. _rows_arrive: all
 * other rows are zeros; id: (count) of the rows that lie one after the other at `gradient`, of the store's dtype, until it is taken
 * (rh_optimizer_take). The stored gradient is whole from then on. -ENOMEM. */
int rh_store_by_rows(struct rh_store *store, int block) RH_MUST;
void rh_store_rows_arrive(struct rh_store *store, int block, const int32_t *id, int64_t count, const void *gradient);
/* For a block of two uses that keeps no sum for use 0: `sum` is elements [first, first+count) of that sum, complete. The stored gradient
 * of these elements becomes use 1's sum + `sum`, rounded once. Call it for every element once a step. */
void rh_store_add_use(struct rh_store *store, int block, int64_t first, int64_t count, const float *sum);

/* Host memory that a block's update moves, in bytes: its gradient made final and its norm; the update itself; publishing. */
struct rh_store_traffic {
	double take, update, publish;
	double weights, moments; /* the update in two passes, where it may be: rh_optimizer_has_passes */
	double nvme;             /* read and written by the update */
};
struct rh_store_traffic rh_store_traffic(const struct rh_store *store, int block);
/* The same of a store that is not there, without what goes to NVMe. */
struct rh_store_traffic rh_store_traffic_of(const struct rh_block *block, const struct rh_store_options *options);

/* One plain tensor's master weights as fp32 in row-major order, elements [first, first+count). Setting refuses a non-finite value (-EINVAL,
 * naming the tensor) because the split cannot hold it. Setting a frozen block rounds to the dtype: BF16 nearest even when frozen, half away
 * when trainable. Where masters are spilled both may fail as rh_space_io_wait does, and belong to whoever has the pool. */
int rh_store_set(struct rh_store *store, int block, int tensor, int64_t first, int64_t count, const float *values) RH_MUST;
/* 1: several threads may set elements at once, as nothing is on NVMe. */
int rh_store_can_set_concurrently(const struct rh_store *store);
int rh_store_get(struct rh_store *store, int block, int tensor, int64_t first, int64_t count, float *values) RH_MUST;

/* Whether elements that would be set are numbers: -EINVAL, naming the tensor. */
int rh_store_check_finite(const struct rh_store *store, int block, int tensor, int64_t first, int64_t count, const float *values) RH_MUST;
/* Bytes [first, first+bytes) of a packed tensor, as they are; of the same places and with the same faults. */
int rh_store_set_packed(struct rh_store *store, int block, int tensor, int64_t first, int64_t bytes, const void *packed) RH_MUST;
int rh_store_get_packed(struct rh_store *store, int block, int tensor, int64_t first, int64_t bytes, void *packed) RH_MUST;

/* One array of a trainable tensor's optimizer state, for checkpoints: F32, or U8 for 8-bit moments. Its shape is the tensor's, or a vector.
 */
struct rh_state {
	const char *suffix; /* ".exp_avg": behind the tensor's name */
	void *data;         /* NULL: on NVMe */
	enum rh_dtype dtype;
	int rank;
	int64_t rows, cols; /* rank 1: cols alone */
};
/* The tensor's array number `which`, from 0. 1, or 0 where it has no more. */
int rh_store_state(const struct rh_store *store, int block, int tensor, int which, struct rh_state *out);
/* Elements [first, first+count) of that array, wherever it lies; of the state's dtype. */
int rh_store_state_get(struct rh_store *store, int block, int tensor, int which, int64_t first, int64_t count, void *values) RH_MUST;
int rh_store_state_set(struct rh_store *store, int block, int tensor, int which, int64_t first, int64_t count, const void *values) RH_MUST;
/* Announces the blocks that will be updated next, in this order, in place of the last announcement; a block whose update is in progress
 * is finished first. The store reads their spilled pieces ahead, as far as the cache has room. */
void rh_store_expect(struct rh_store *store, const int *block, int count);
/* For a caller that is idle: waits for a little of what is being written, and reads ahead in its place. 1: there is more to do; 0: not
 * now; negative errno: a fault of NVMe. This and rh_store_expect are only for the holder of the pool. */
int rh_store_advance(struct rh_store *store) RH_MUST;
/* The options of rh_store_create. */
const struct rh_store_options *rh_store_options(const struct rh_store *store);

#endif
