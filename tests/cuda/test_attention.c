#include "attention_case.h"
#include "kernel_case.h"

#include "cuda/device.h"
#include "cuda/kernels.h"

static struct op_case backward_case(const struct attention_shape *s, enum rh_attention_direction direction, enum rh_dtype dtype,
                                    int64_t pad, int sinks, uint64_t *seed)
{
	struct op_case c = attention_backward_case(s, direction, dtype, pad, sinks, seed);
	int64_t rows = rh_attention_space_rows(attention_rows(s, s->lq), s->documents, s->dim);
	case_operand(&c, RH_ATTENTION_BACKWARD_SPACE, RH_F32, rows, s->heads * s->dim, 0, FILL_POISON);
	return c;
}

/* For kernels on tensor cores, which round p and ds to bf16: each is off by up to 2^-9 of itself, to either side. o is a mean, weighted by
 * p, of values within 1. */
static struct op_case mma_case(const struct attention_shape *s, enum rh_attention_direction direction, int64_t pad, int sinks,
                               uint64_t *seed)
{
	struct op_case c = attention_case(s, direction, RH_BF16, pad, sinks, seed);
	c.tolerance[RH_ATTENTION_O] = 0x1p-9;
	return c;
}

/* Such roundings are a variance of 2^-19.6 of the square; scale ds is 0.7 p by chance, q, k and dO 0.6. The squares of a row of p sum up to
 * at most 1, of a column to about 2.5 times the heads of the group, of which there are 3 here at most. Five deviations then are 2^-8.8 for
 * dq, 2^-6.8 for dk and dv where all is at its worst. Where 70 queries share 4 keys a column's squares sum up to more: twice that. */
static struct op_case mma_backward_case(const struct attention_shape *s, enum rh_attention_direction direction, int64_t pad, int sinks,
                                        uint64_t *seed)
{
	struct op_case c = backward_case(s, direction, RH_BF16, pad, sinks, seed);
	c.tolerance[RH_ATTENTION_BACKWARD_DQ] = 0x1p-8;
	double dkv = 0x1p-7;
	for (int d = 0; d < s->documents; d++)
		dkv = s->lk[d] > 0 && s->lq[d] > s->lk[d] ? 0x1p-6 : dkv;
	c.tolerance[RH_ATTENTION_BACKWARD_DK] = c.tolerance[RH_ATTENTION_BACKWARD_DV] = dkv;
	return c;
}

/* Tiles are 64 or 128 own rows and 64 streamed ones, in backward 32 for D above 64; for D 512 64 and 16, in backward 32 and 16; the plain
 * kernels' 16 and 32. */
static const struct attention_shape mma_shapes[] = {
        {1, 1, 64, 0, 0, 1, {1}, {1}},
        {3, 1, 64, 0, 3, 3, {66, 1, 37}, {66, 1, 37}}, /* three heads share a key head; rows outside */
        {2, 2, 128, 0, 0, 1, {97}, {97}},              /* no group */
        {4, 2, 256, 0, 0, 1, {97}, {97}},              /* Gemma 3 */
        {2, 1, 512, 0, 0, 1, {97}, {97}},              /* Gemma 4 */
        {2, 1, 512, 20, 1, 4, {5, 0, 40, 7}, {33, 0, 40, 4}},
        {2, 1, 256, 33, 1, 3, {20, 0, 70}, {85, 0, 70}},     /* with a window, documents and a cache */
        {2, 1, 96, 0, 1, 4, {0, 17, 0, 65}, {0, 17, 0, 65}}, /* empty documents, the first one too */
        {2, 1, 64, 24, 0, 2, {150, 11}, {150, 11}},          /* a window: tiles seen in part at both ends, or not at all */
        {1, 1, 64, 100, 0, 1, {190}, {190}},                 /* a window wider than a tile: its two ends in different ones */
        {1, 1, 128, 1, 0, 1, {70}, {70}},                    /* each sees itself */
        {2, 1, 96, 0, 0, 3, {1, 7, 3}, {130, 7, 64}},        /* a cache: fewer queries than keys */
        {2, 2, 64, 50, 2, 3, {1, 20, 3}, {130, 90, 64}},     /* a cache and a window */
        {2, 1, 128, 0, 0, 2, {70, 9}, {4, 4}},               /* more queries than keys: some see none, a whole tile too */
        {1, 1, 64, 0, 0, 3, {3, 4, 0}, {0, 4, 5}},           /* no keys at all; no queries at all */
        {3, 1, 32, 0, 1, 3, {66, 0, 70}, {66, 0, 70}},       /* MiniLM's heads */
        {2, 1, 32, 40, 0, 2, {20, 90}, {85, 90}},
        {2, 1, 64, 0, 0, 6, {3, 1, 4, 64, 5, 9}, {3, 1, 4, 64, 5, 9}},
};

static const struct attention_shape plain_shapes[] = {
        {1, 1, 4, 0, 0, 1, {1}, {1}},
        {3, 1, 64, 0, 3, 3, {40, 1, 37}, {40, 1, 37}},
        {7, 1, 20, 0, 0, 2, {33, 17}, {33, 17}},             /* a group that does not divide the lanes */
        {2, 1, 13, 0, 1, 4, {0, 17, 0, 66}, {0, 17, 0, 66}}, /* odd D */
        {1, 1, 255, 0, 0, 1, {35}, {35}},                    /* widest head but that of the tensor cores */
        {4, 2, 16, 24, 0, 2, {100, 11}, {100, 11}},
        {2, 2, 40, 1, 0, 1, {40}, {40}},
        {2, 1, 40, 50, 2, 3, {1, 20, 3}, {130, 90, 64}},
        {2, 1, 8, 0, 0, 2, {70, 40}, {4, 40}},
        {2, 1, 8, 0, 0, 3, {3, 4, 0}, {0, 4, 5}},
};

enum { MMA_SHAPES = sizeof mma_shapes / sizeof mma_shapes[0], PLAIN_SHAPES = sizeof plain_shapes / sizeof plain_shapes[0] };

/* On SMs of both sizes, an sm_89's and an H100's, whose blocks take 64 and 128 rows; on the former the backward also without the space that
 * its one pass needs. Both directions of each shape in a long run, else one. */
static void every_shape(struct op_case make(const struct attention_shape *, enum rh_attention_direction, int64_t, int, uint64_t *),
                        kernel_entry *kernel)
{
	uint64_t seed = check_seed();
	for (int i = 0; i < 6 * MMA_SHAPES; i++) {
		enum rh_attention_direction direction = i / 3 % 2 ? RH_ATTENTION_BOTH : RH_ATTENTION_CAUSAL;
		if (!getenv("RH_LONG") && i / 12 % 2 != i / 3 % 2)
			continue;
		struct op_case c = make(&mma_shapes[i / 6], direction, i / 6 % 2 * 8, i / 6 % 3 > 0, &seed);
		cudaemu_set_shared_bytes(i % 3 == 1 ? 228 << 10 : 100 << 10);
		if (i % 3 == 2 && c.op.kind == RH_OP_ATTENTION_BACKWARD)
			c.op.operand[RH_ATTENTION_BACKWARD_SPACE] = (struct rh_view){0};
		kernel_check(&c, kernel, &seed);
	}
	cudaemu_set_shared_bytes(100 << 10);
	cudaemu_release();
}

static void test_attention_bf16_equals_the_oracle(void **state)
{
	(void)state;
	every_shape(mma_case, cuda_attention);
}

static void test_attention_backward_bf16_equals_the_oracle(void **state)
{
	(void)state;
	every_shape(mma_backward_case, cuda_attention_backward);
}

/* F32, and bf16 of other head sizes or (a pad of 5) of rows that do not begin on 16 bytes. */
static void test_attention_plain_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < 2 * PLAIN_SHAPES; i++) {
		enum rh_attention_direction direction = i % 2 ? RH_ATTENTION_BOTH : RH_ATTENTION_CAUSAL;
		struct op_case single = attention_case(&plain_shapes[i / 2], direction, RH_F32, i / 2 % 2 * 5, i / 2 % 3 > 0, &seed);
		kernel_check(&single, cuda_attention, &seed);
		struct op_case half = attention_case(&plain_shapes[i / 2], direction, RH_BF16, i / 2 % 2 * 5, i / 2 % 3 > 0, &seed);
		kernel_check(&half, cuda_attention, &seed);
	}
	cudaemu_release();
}

static void test_attention_plain_backward_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < 2 * PLAIN_SHAPES; i++) {
		enum rh_attention_direction direction = i % 2 ? RH_ATTENTION_BOTH : RH_ATTENTION_CAUSAL;
		struct op_case single = backward_case(&plain_shapes[i / 2], direction, RH_F32, i / 2 % 2 * 5, i / 2 % 3 > 0, &seed);
		kernel_check(&single, cuda_attention_backward, &seed);
		struct op_case half = backward_case(&plain_shapes[i / 2], direction, RH_BF16, i / 2 % 2 * 5, i / 2 % 3 > 0, &seed);
		kernel_check(&half, cuda_attention_backward, &seed);
	}
	cudaemu_release();
}

/* bf16 of the tensor cores' heads takes the plain kernels then, too. */
static void test_attention_that_drops_equals_the_oracle(void **state)
{
	attention_drops = 0.3f;
	test_attention_plain_equals_the_oracle(state);
	test_attention_plain_backward_equals_the_oracle(state);
	uint64_t seed = check_seed();
	for (int i = 1; i < 4; i += 2) {
		struct op_case forward = attention_case(&mma_shapes[i], RH_ATTENTION_CAUSAL, RH_BF16, 8, 0, &seed);
		kernel_check(&forward, cuda_attention, &seed);
		struct op_case backward = backward_case(&mma_shapes[i], RH_ATTENTION_CAUSAL, RH_BF16, 8, 0, &seed);
		kernel_check(&backward, cuda_attention_backward, &seed);
	}
	attention_drops = 0;
	cudaemu_release();
}

/* The plain kernels' widest heads: in bf16 (of 512 elements where rows do not begin on 16 bytes) on SMs of RTX cards too, in F32 on larger
 * ones alone. */
static void test_attention_of_wide_heads_equals_the_oracle(void **state)
{
	(void)state;
	static const struct attention_shape shapes[] = {{2, 1, 512, 0, 0, 2, {20, 17}, {20, 17}}, {1, 1, 300, 9, 1, 1, {40}, {45}}};
	uint64_t seed = check_seed();
	for (int i = 0; i < 4; i++) {
		enum rh_dtype dtype = i % 2 ? RH_BF16 : RH_F32;
		cudaemu_set_shared_bytes(i % 2 ? 100 << 10 : 228 << 10);
		struct op_case forward = attention_case(&shapes[i / 2], RH_ATTENTION_CAUSAL, dtype, 5, i / 2, &seed);
		kernel_check(&forward, cuda_attention, &seed);
		struct op_case backward = backward_case(&shapes[i / 2], RH_ATTENTION_CAUSAL, dtype, 5, i / 2, &seed);
		kernel_check(&backward, cuda_attention_backward, &seed);
	}
	cudaemu_set_shared_bytes(100 << 10);
	cudaemu_release();
}

/* In F32 such heads do not fit an SM of an RTX card: one line says so, and what to do. */
static void test_attention_that_an_sm_has_no_room_for_is_refused(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct attention_shape s = {1, 1, 512, 0, 0, 1, {3}, {3}};
	struct op_case forward = attention_case(&s, RH_ATTENTION_CAUSAL, RH_F32, 0, 0, &seed),
	               backward = backward_case(&s, RH_ATTENTION_CAUSAL, RH_F32, 0, 0, &seed);
#ifdef RH_ON_GPU
	check_skip("the launch is refused before it reads anything, whose addresses are the host's");
#endif
	assert_int_equal(cuda_attention(&forward.op, NULL), -ENOTSUP);
	assert_non_null(strstr(rh_error(-ENOTSUP), "heads of 512 elements in F32 takes 194 KB of an SM's shared memory"));
	assert_int_equal(cuda_attention_backward(&backward.op, NULL), -ENOTSUP);
	assert_non_null(strstr(rh_error(-ENOTSUP), "use dtype bfloat16"));
	case_free(&forward);
	case_free(&backward);
}

/* Lengths, heads and windows by chance. */
static void test_attention_of_random_documents_equals_the_oracle(void **state)
{
	(void)state;
	static const int dims[] = {64, 96, 128, 256, 32, 512};
	uint64_t seed = check_seed();
	for (int i = 0; i < 12; i++) {
		struct attention_shape s = {.kv_heads = 1, .dim = dims[(i + i / 6) % 6], .documents = (int)case_between(&seed, 1, 4)};
		s.heads = (int)case_between(&seed, 1, 2);
		s.lead = (int)case_between(&seed, 0, 5);
		s.window = i % 2 ? (int)case_between(&seed, 1, 90) : 0;
		enum rh_attention_direction direction = i < 6 ? RH_ATTENTION_CAUSAL : RH_ATTENTION_BOTH;
		for (int d = 0; d < s.documents; d++) {
			s.lq[d] = (int)case_between(&seed, 0, 200 / s.documents);
			s.lk[d] = i % 6 < 3 ? s.lq[d] : (int)case_between(&seed, 0, 200 / s.documents);
		}
		struct op_case c =
		        i % 2 ? mma_backward_case(&s, direction, 0, i / 2 % 2, &seed) : mma_case(&s, direction, 0, i / 2 % 2, &seed);
		kernel_check(&c, i % 2 ? cuda_attention_backward : cuda_attention, &seed);
	}
	cudaemu_release();
}

static void test_attention_reads_a_fused_projection(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct attention_shape s = {2, 1, 64, 0, 0, 2, {50, 31}, {50, 31}};
	struct op_case c = mma_case(&s, RH_ATTENTION_CAUSAL, 0, 0, &seed);
	attention_fuse(&c);
	kernel_check(&c, cuda_attention, &seed);
	cudaemu_release();
}

/* A document's result does not depend on what is packed around it. */
static void test_attention_of_a_packed_document_equals_it_alone(void **state)
{
	(void)state;
#ifdef RH_ON_GPU
	check_skip("the kernel reads host memory here, which only emulation allows");
#endif
	uint64_t seed = check_seed();
	struct attention_shape packed = {2, 1, 64, 0, 0, 3, {61, 75, 20}, {61, 75, 20}}, alone = {2, 1, 64, 0, 0, 1, {75}, {75}};
	struct op_case all = mma_backward_case(&packed, RH_ATTENTION_CAUSAL, 0, 0, &seed),
	               one = mma_backward_case(&alone, RH_ATTENTION_CAUSAL, 0, 0, &seed);
	int inputs[] = {RH_ATTENTION_BACKWARD_Q, RH_ATTENTION_BACKWARD_K,   RH_ATTENTION_BACKWARD_V,
	                RH_ATTENTION_BACKWARD_O, RH_ATTENTION_BACKWARD_LSE, RH_ATTENTION_BACKWARD_DO};
	for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
		struct rh_view to = one.op.operand[inputs[i]], from = rh_view_rows(all.op.operand[inputs[i]], 61, 75);
		memcpy(to.data, from.data, (size_t)rh_view_bytes(to));
	}
	check_ok(cuda_attention_backward(&all.op, NULL));
	check_ok(cuda_attention_backward(&one.op, NULL));
	for (int i = RH_ATTENTION_BACKWARD_DQ; i <= RH_ATTENTION_BACKWARD_DV; i++) {
		struct rh_view alone_view = one.op.operand[i], packed_view = rh_view_rows(all.op.operand[i], 61, 75);
		assert_memory_equal(alone_view.data, packed_view.data, (size_t)rh_view_bytes(alone_view));
	}
	case_free(&all);
	case_free(&one);
	cudaemu_release();
}

/* One pass, and two kernels of blocks of 64 rows, give the same bits, but for windows, where the first key is the block's. dk and dv of
 * heads of 64 and 128 elements have blocks of 128 on large SMs, which begin at another query. */
static void test_attention_backward_is_the_same_on_large_sms(void **state)
{
	(void)state;
#ifdef RH_ON_GPU
	check_skip("the kernel reads host memory here, which only emulation allows");
#endif
	uint64_t seed = check_seed();
	for (int dim = 96; dim <= 128; dim += 32) {
		struct attention_shape s = {4, 2, dim, 0, 2, 3, {61, 150, 20}, {61, 170, 20}};
		struct op_case small = mma_backward_case(&s, RH_ATTENTION_CAUSAL, 8, 0, &seed), large = case_clone(&small),
		               checked = case_clone(&small);
		check_ok(cuda_attention_backward(&small.op, NULL));
		cudaemu_set_shared_bytes(228 << 10);
		check_ok(cuda_attention_backward(&large.op, NULL));
		for (int i = RH_ATTENTION_BACKWARD_DQ; i <= (dim == 96 ? RH_ATTENTION_BACKWARD_DV : RH_ATTENTION_BACKWARD_DQ); i++)
			assert_memory_equal(small.buffer[i].bytes, large.buffer[i].bytes, small.buffer[i].size);
		kernel_check(&checked, cuda_attention_backward, &seed);
		cudaemu_set_shared_bytes(100 << 10);
		case_free(&small);
		case_free(&large);
	}
	cudaemu_release();
}

/* On an SM of either size: blocks of keys that run at once add to dq in the order of their keys, whichever is first. Both directions of
 * each shape in a long run, else one. */
static void test_attention_backward_is_the_same_with_blocks_at_once(void **state)
{
	(void)state;
#ifdef RH_ON_GPU
	check_skip("a GPU runs all blocks at once; device_case_check compares two runs");
#endif
	uint64_t seed = check_seed();
	static const struct attention_shape shapes[] = {
	        {4, 2, 128, 0, 2, 3, {61, 330, 20}, {61, 350, 20}}, {2, 1, 96, 100, 0, 1, {400}, {400}},
	        {2, 1, 64, 0, 0, 2, {90, 300}, {90, 300}},          {2, 1, 256, 0, 0, 2, {90, 200}, {90, 210}},
	        {2, 1, 512, 0, 0, 2, {40, 70}, {40, 80}},           {2, 1, 128, 70, 0, 1, {300}, {310}}};
	for (size_t i = 0; i < 4 * sizeof shapes / sizeof *shapes; i++) {
		enum rh_attention_direction direction = i % 2 ? RH_ATTENTION_BOTH : RH_ATTENTION_CAUSAL;
		if (!getenv("RH_LONG") && i / 4 % 2 != i % 2)
			continue;
		cudaemu_set_shared_bytes(i / 2 % 2 ? 228 << 10 : 100 << 10);
		struct op_case alone = mma_backward_case(&shapes[i / 4], direction, 0, 0, &seed), beside = case_clone(&alone);
		check_ok(cuda_attention_backward(&alone.op, NULL));
		cudaemu_set_order(CUDAEMU_RANDOM, check_random(&seed));
		cudaemu_set_blocks_at_once(6);
		check_ok(cuda_attention_backward(&beside.op, NULL));
		cudaemu_set_blocks_at_once(1);
		for (int k = RH_ATTENTION_BACKWARD_DELTA; k <= RH_ATTENTION_BACKWARD_DV; k++)
			assert_memory_equal(alone.buffer[k].bytes, beside.buffer[k].bytes, alone.buffer[k].size);
		case_free(&alone);
		case_free(&beside);
	}
	cudaemu_set_shared_bytes(100 << 10);
	cudaemu_release();
}

/* Under AddressSanitizer these take minutes; the other shapes of such heads are run there too. */
static int is_slow(int64_t dim)
{
#ifdef __SANITIZE_ADDRESS__
	return dim > 256 && !getenv("RH_LONG");
#else
	(void)dim;
	return 0;
#endif
}

/* The bits of one launch, and so many launches more: of each kernel of forward and backward. Blocks of a launch run at once, in any order.
 */
static void check_parts(struct op_case *whole, kernel_entry *kernel, int kernels, uint64_t *seed)
{
	struct op_case parts = case_clone(whole);
	parts.op.attention.head_parts = (int)case_between(seed, 2, 3);
	parts.op.attention.row_parts = (int)case_between(seed, 1, 4);
	int64_t before = rh_cuda_launches(), first = parts.op.kind == RH_OP_ATTENTION ? RH_ATTENTION_O : RH_ATTENTION_BACKWARD_DELTA;
	check_ok(kernel(&whole->op, NULL));
	int64_t once = rh_cuda_launches() - before;
	cudaemu_set_order(CUDAEMU_RANDOM, check_random(seed));
	cudaemu_set_blocks_at_once(6);
	check_ok(kernel(&parts.op, NULL));
	cudaemu_set_blocks_at_once(1);
	int64_t several = rh_cuda_launches() - before - once;
	assert_in_range(several, once + kernels, once + kernels * 3 * 4);
	for (int64_t i = first; i <= RH_ATTENTION_BACKWARD_DV_SUM; i++)
		if (whole->buffer[i].bytes)
			assert_memory_equal(whole->buffer[i].bytes, parts.buffer[i].bytes, whole->buffer[i].size);
	case_free(&parts);
	case_free(whole);
}

static void test_attention_in_parts_has_the_same_bits(void **state)
{
	(void)state;
#ifdef RH_ON_GPU
	check_skip("the kernel reads host memory here, which only emulation allows");
#endif
	static const struct {
		int dim, large, plain, backward_kernels; /* that are split */
	} of[] = {{128, 0, 0, 1}, {64, 0, 0, 1},  {64, 1, 0, 2},  {96, 1, 0, 2}, {128, 1, 0, 2},
	          {256, 0, 0, 3}, {256, 1, 0, 2}, {512, 0, 0, 2}, {20, 0, 1, 2}};
	uint64_t seed = check_seed();
	for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
		if (is_slow(of[i].dim))
			continue;
		struct attention_shape s = {6, 3, of[i].dim, i % 2 ? 0 : 90, 2, 3, {61, 200, 20}, {61, 260, 20}};
		enum rh_dtype dtype = of[i].plain ? RH_F32 : RH_BF16;
		struct op_case forward = attention_case(&s, RH_ATTENTION_CAUSAL, dtype, 0, (int)i % 2, &seed);
		struct op_case backward = backward_case(&s, RH_ATTENTION_CAUSAL, dtype, 0, (int)i % 2, &seed);
		cudaemu_set_shared_bytes(of[i].large ? 228 << 10 : 100 << 10);
		check_parts(&forward, cuda_attention, 1, &seed);
		check_parts(&backward, cuda_attention_backward, of[i].backward_kernels, &seed);
	}
	cudaemu_set_shared_bytes(100 << 10);
	cudaemu_release();
}

static void run_kernel(struct rh_op *op, void *context)
{
	(void)context;
	check_ok(op->kind == RH_OP_ATTENTION ? cuda_attention(op, NULL) : cuda_attention_backward(op, NULL));
}

/* Each kernel of the backward: one pass or two, blocks of 64 and of 128 keys, heads of 256 and 512, the plain ones. */
static void test_attention_in_runs_equals_it_at_once(void **state)
{
	(void)state;
#ifdef RH_ON_GPU
	check_skip("the kernel reads host memory here, which only emulation allows");
#endif
	static const struct {
		int dim, window, large, plain;
	} of[] = {{64, 0, 0, 0},  {64, 150, 1, 0}, {128, 150, 0, 0}, {128, 0, 1, 0},
	          {256, 0, 0, 0}, {256, 0, 1, 0},  {512, 0, 0, 0},   {20, 150, 0, 1}};
	uint64_t seed = check_seed();
	for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
		if (is_slow(of[i].dim))
			continue;
		struct attention_shape s = {
		        2, 1, of[i].dim, of[i].window, 0, 3, {RUN_FIRST, RUN_MIDDLE, RUN_LAST}, {RUN_FIRST, RUN_MIDDLE, RUN_LAST}};
		enum rh_dtype dtype = of[i].plain ? RH_F32 : RH_BF16;
		struct op_case forward = attention_case(&s, RH_ATTENTION_CAUSAL, dtype, 0, (int)i % 2, &seed);
		struct op_case backward = backward_case(&s, RH_ATTENTION_CAUSAL, dtype, 0, (int)i % 2, &seed);
		cudaemu_set_shared_bytes(of[i].large ? 228 << 10 : 100 << 10);
		attention_check_runs(&forward, run_kernel, NULL);
		attention_check_runs(&backward, run_kernel, NULL);
		case_free(&forward);
		case_free(&backward);
	}
	cudaemu_set_shared_bytes(100 << 10);
	cudaemu_release();
}

static void test_attention_backward_with_sums_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < 2 * SUM_SHAPES; i++) {
		struct op_case c = attention_backward_with_sums(&attention_sum_shapes[i / 2], i % 2 ? RH_BF16 : RH_F32, &seed);
		kernel_check(&c, cuda_attention_backward, &seed);
	}
	cudaemu_release();
}

/* Scores of a thousand and more: the running maximum keeps the exponentials in range. */
static void test_attention_of_huge_scores_stays_finite(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct attention_shape s = {2, 1, 64, 0, 0, 1, {100}, {100}};
	struct op_case c = mma_case(&s, RH_ATTENTION_CAUSAL, 0, 0, &seed);
	c.op.attention.scale = 1000;
	c.tolerance[RH_ATTENTION_O] = c.tolerance[RH_ATTENTION_LSE] = 0x1p-6; /* scores of 10000 are off by 2^-9 */
	kernel_check(&c, cuda_attention, &seed);
	cudaemu_release();
}

static void test_attention_without_documents_writes_nothing(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct attention_shape s = {2, 1, 64, 0, 4, 0, {0}, {0}};
	struct op_case forward = mma_case(&s, RH_ATTENTION_CAUSAL, 0, 0, &seed),
	               backward = mma_backward_case(&s, RH_ATTENTION_CAUSAL, 0, 0, &seed);
	kernel_check(&forward, cuda_attention, &seed);
	kernel_check(&backward, cuda_attention_backward, &seed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_attention_bf16_equals_the_oracle),
	        cmocka_unit_test(test_attention_backward_bf16_equals_the_oracle),
	        cmocka_unit_test(test_attention_that_drops_equals_the_oracle),
	        cmocka_unit_test(test_attention_plain_equals_the_oracle),
	        cmocka_unit_test(test_attention_plain_backward_equals_the_oracle),
	        cmocka_unit_test(test_attention_of_wide_heads_equals_the_oracle),
	        cmocka_unit_test(test_attention_that_an_sm_has_no_room_for_is_refused),
	        cmocka_unit_test(test_attention_of_random_documents_equals_the_oracle),
	        cmocka_unit_test(test_attention_reads_a_fused_projection),
	        cmocka_unit_test(test_attention_of_a_packed_document_equals_it_alone),
	        cmocka_unit_test(test_attention_backward_is_the_same_on_large_sms),
	        cmocka_unit_test(test_attention_backward_is_the_same_with_blocks_at_once),
	        cmocka_unit_test(test_attention_in_parts_has_the_same_bits),
	        cmocka_unit_test(test_attention_in_runs_equals_it_at_once),
	        cmocka_unit_test(test_attention_backward_with_sums_equals_the_oracle),
	        cmocka_unit_test(test_attention_of_huge_scores_stays_finite),
	        cmocka_unit_test(test_attention_without_documents_writes_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
