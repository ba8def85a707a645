/* Adapters on bases that stay packed: losses and adapter are, bit for bit, those of the same files made plain as they are loaded; in
 * rounds, on several devices, with weights on NVMe, with a room for plain matrices and without; and bytes are the plan's. */
#include "offload/drives.h"
#include "run/bytes_case.h"
#include "train/packed.h"

#include "ckpt/gguf.h"
#include "ckpt/quantise_form.h"
#include "core/file.h"

static char dir[64], whole[96];

static int make_files(void **state)
{
	(void)state;
	snprintf(dir, sizeof dir, "%s/rh-packed-XXXXXX", check_place("/tmp"));
	assert_non_null(mkdtemp(dir));
	snprintf(whole, sizeof whole, "%s/whole.gguf", dir);
	packed_export(whole);
	return 0;
}

static int remove_files(void **state)
{
	(void)state;
	check_ok(rh_dir_remove(dir));
	return 0;
}

struct outcome {
	double loss[PACKED_STEPS];
	float *adapter;
	int64_t count, device_bytes, plain_bytes, store_bytes;
	int form[RH_FORMS]; /* how many matrices have it */
};

static void count_forms(const struct rh_model *model, struct outcome *out)
{
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; t < model->block[b].tensors; t++)
			out->form[model->block[b].tensor[t].form]++;
}

/* 0, or RH_DOES_NOT_FIT. */
static int run(const struct packed_case *is, struct outcome *out)
{
	struct rig rig;
	struct rig_input in;
	*out = (struct outcome){0};
	int rc = packed_open(&rig, is, &in);
	if (!rc) {
		packed_train(&rig, &in, out->loss);
		check_device_bytes(&rig.session);
		if (!is->nvme)
			check_host_bytes(&rig.session);
		out->adapter = rig_weights(&rig.session, &out->count);
		out->device_bytes = rig.session.plan.stages.device_bytes;
		out->plain_bytes = rig.session.plan.stages.plain_bytes;
		out->store_bytes = rig.session.plan.bytes.store;
		count_forms(rig.session.model, out);
	}
	assert_true(!rc || rc == RH_DOES_NOT_FIT);
	rig_close(&rig);
	return rc;
}

static void same(const struct outcome *a, const struct outcome *b)
{
	assert_memory_equal(a->loss, b->loss, sizeof a->loss);
	assert_int_equal(a->count, b->count);
	assert_memory_equal(a->adapter, b->adapter, (size_t)a->count * sizeof *a->adapter);
}

/* The largest cap, in 32nds, under which products have their own made in the arena; then the run's outcome. 0: there is none. */
static int run_in_arena(struct packed_case is, int64_t bytes, struct outcome *out)
{
	for (int part = 31; part > 4; part--) {
		is.cap = bytes * part / 32;
		int rc = run(&is, out);
		rh_error_clear();
		if (rc)
			return 0;
		if (!out->plain_bytes)
			return 1;
		free(out->adapter);
	}
	return 0;
}

/* How many of the runs made plain matrices in the arena. */
static int check_file(const char *file, enum rh_form form, char *nvme)
{
	static const char *const devices[] = {"cpu:1", "cpu:3"};
	int in_arena = 0;
	for (int i = 0; i < 4; i++) {
		struct packed_case is = {.file = file, .device = devices[i / 2], .dtype = i % 2 ? RH_BF16 : RH_F32};
		struct outcome plain, packed, other;
		is.is_plain = 1;
		assert_int_equal(run(&is, &plain), 0);
		assert_int_equal(plain.plain_bytes, 0);
		is.is_plain = 0;
		assert_int_equal(run(&is, &packed), 0);
		same(&plain, &packed);
		assert_true(packed.form[form] > 0 && packed.plain_bytes > 0);
		assert_true(packed.store_bytes < plain.store_bytes + (is.dtype == RH_BF16)); /* in whole pages */
		is.round = 1 + i % 3;
		assert_int_equal(run(&is, &other), 0);
		same(&plain, &other);
		free(other.adapter);
		is.nvme = nvme;
		assert_int_equal(run(&is, &other), 0);
		same(&plain, &other);
		free(other.adapter);
		is.nvme = NULL;
		if (run_in_arena(is, packed.device_bytes, &other)) {
			same(&plain, &other);
			free(other.adapter);
			in_arena++;
		}
		free(plain.adapter);
		free(packed.adapter);
	}
	return in_arena;
}

static void test_packed_bases_train_as_plain_ones(void **state)
{
	(void)state;
	const struct {
		const char *file;
		enum rh_form form;
	} files[] = {{whole, RH_FORM_Q8_0},
	             {"tests/reference/models/gguf-llama/model.gguf", RH_FORM_Q8_0}, /* q, k and v of three types; rows in another order */
	             {"tests/reference/models/gguf-qwen2/model.gguf", RH_FORM_Q8_0},
	             {"tests/reference/models/gguf-phi3/model.gguf", RH_FORM_Q8_0},
	             {"tests/reference/models/gguf-qwen3-moe/model.gguf", RH_FORM_Q8_0},
	             {"tests/reference/models/gguf-qwen3-next/model.gguf", RH_FORM_Q8_0}, /* q, k, v and z in two tensors, or by key head */
	             {"tests/reference/packed/next-fp8", RH_FORM_FP8_BLOCKS},
	             {"tests/reference/ckpt/gpt-oss", RH_FORM_MXFP4},
	             {"tests/reference/packed/bnb-nf4", RH_FORM_NF4},
	             {"tests/reference/packed/bnb-nf4-nested", RH_FORM_NF4_NESTED},
	             {"tests/reference/packed/bnb-fp4", RH_FORM_BNB_FP4},
	             {"tests/reference/packed/bnb-fp4-nested", RH_FORM_BNB_FP4_NESTED},
	             {"tests/reference/packed/bnb-int8", RH_FORM_INT8},
	             {"tests/reference/packed/fp8-blocks", RH_FORM_FP8_BLOCKS},
	             {"tests/reference/packed/fp8", RH_FORM_FP8},
	             {"tests/reference/packed/fp8-blocks-e8m0", RH_FORM_FP8_BLOCKS},
	             {"tests/reference/packed/nvfp4-compressed", RH_FORM_NVFP4},
	             {"tests/reference/packed/nvfp4-modelopt", RH_FORM_NVFP4}};
	struct drives drives;
	int in_arena = 0;
	drives_make(&drives);
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		int these = check_file(files[i].file, files[i].form, drives.dir[0]);
		printf("%s: %d in the arena\n", files[i].file, these);
		in_arena += these;
	}
	drives_remove(&drives);
	assert_true(in_arena > 0);
}

/* Every type of GGUF files, embedding and head too. */
static void test_every_type_of_gguf_files_stays_packed(void **state)
{
	(void)state;
	struct drives drives;
	drives_make(&drives);
	for (int f = RH_FORM_PLAIN + 1; f < RH_FORMS; f++) {
		enum rh_dtype dtype = rh_form_traits((enum rh_form)f)->element;
		char path[96];
		if (dtype < RH_Q4_0)
			continue;
		snprintf(path, sizeof path, "%s/type.gguf", dir);
		packed_make(path, dtype, (uint64_t)f);
		(void)check_file(path, (enum rh_form)f, drives.dir[0]);
		struct packed_case is = {.file = path, .device = "cpu:1", .dtype = RH_BF16};
		struct outcome packed;
		assert_int_equal(run(&is, &packed), 0);
		assert_int_equal(packed.form[f], 9);
		assert_true(packed.loss[0] > 1 && packed.loss[0] < 40);
		free(packed.adapter);
	}
	drives_remove(&drives);
}

/* Matrices of full precision that become packed as they are read: the same to the bit in rounds, on NVMe and in the arena, and near what
 * they were. */
static void test_matrices_made_packed_train(void **state)
{
	(void)state;
	struct drives drives;
	char packed_file[96], file[96];
	int in_arena = 0;
	struct rh_merged merged;
	drives_make(&drives);
	snprintf(packed_file, sizeof packed_file, "%s/q8.gguf", dir);
	snprintf(file, sizeof file, "%s/full.gguf", dir);
	packed_make(packed_file, RH_Q8_0, 7);
	check_ok(rh_merge(&(struct rh_merge){.model = packed_file, .gguf = file, .dtype = RH_F16}, &merged));
	for (int f = RH_FORM_PLAIN + 1; f < RH_FORMS; f++) {
		struct packed_case is = {.file = file, .device = f % 2 ? "cpu:1" : "cpu:3", .dtype = f / 2 % 2 ? RH_BF16 : RH_F32};
		struct outcome full, made, other;
		if (!rh_may_quantise_form((enum rh_form)f))
			continue;
		assert_int_equal(run(&is, &full), 0);
		is.made = (enum rh_form)f;
		assert_int_equal(run(&is, &made), 0);
		assert_int_equal(made.form[f], 7); /* not the embedding, nor the head */
		assert_true(made.store_bytes < full.store_bytes && fabs(made.loss[0] - full.loss[0]) < 0.1 * full.loss[0]);
		assert_true(made.loss[0] != full.loss[0]);
		is.round = 2;
		assert_int_equal(run(&is, &other), 0);
		same(&made, &other);
		free(other.adapter);
		is.nvme = drives.dir[0];
		assert_int_equal(run(&is, &other), 0);
		same(&made, &other);
		free(other.adapter);
		is.nvme = NULL;
		if (run_in_arena(is, made.device_bytes, &other)) {
			same(&made, &other);
			free(other.adapter);
			in_arena++;
		}
		free(full.adapter);
		free(made.adapter);
	}
	assert_true(in_arena > 0);
	drives_remove(&drives);
}

/* What is stored for 8-bit products is what QUANTISE makes of the same weights, the joint matrix of one product at once. */
static void same_as_quantised(const struct rh_session *plain, const struct rh_session *stored, int b, int t)
{
	static float values[512 * 512], part[RH_QUANTISE_PARTS];
	static _Alignas(16) uint8_t eight[512 * 512], bytes[512 * 512 + 4];
	const struct rh_block *block = &stored->model->block[b];
	struct rh_op op = {.kind = RH_OP_QUANTISE, .quantise.limit = 448};
	int64_t cols = block->tensor[t].cols, rows = 0, at = 0;
	float scale;
	for (int i = t; i == t || (i < block->tensors && block->tensor[i].joins); i++) {
		const struct rh_tensor *tensor = &block->tensor[i];
		int64_t count = rh_block_tensor(block, i, RH_BF16).bytes;
		assert_int_equal(tensor->form, RH_FORM_FP8_JOINT);
		assert_true(rows + tensor->rows <= 512 && cols <= 512);
		check_ok(rh_store_get(plain->store, b, i, 0, tensor->rows * cols, values + rows * cols));
		check_ok(rh_store_get_packed(stored->store, b, i, 0, count, bytes + at));
		rows += tensor->rows;
		at += count;
	}
	assert_int_equal(at, rows * cols + 4);
	op.operand[RH_QUANTISE_X] = rh_view_of(values, RH_F32, rows, cols);
	op.operand[RH_QUANTISE_PART] = rh_view_of(part, RH_F32, 1, RH_QUANTISE_PARTS);
	op.operand[RH_QUANTISE_SCALE] = rh_view_of(&scale, RH_F32, 1, 1);
	op.operand[RH_QUANTISE_Y] = rh_view_of(eight, RH_E4M3, rows, cols);
	rh_op_oracle(&op);
	assert_memory_equal(bytes, eight, (size_t)(rows * cols));
	assert_memory_equal(bytes + rows * cols, &scale, sizeof scale);
}

static void test_a_base_is_stored_as_8_bit_products_would_quantise_it(void **state)
{
	(void)state;
	struct packed_case is = {.file = "tests/reference/models/qwen3", .device = "cpu:1", .dtype = RH_BF16, .fp8 = 1};
	struct rig stored, plain;
	struct rig_input in;
	int matrices = 0;
	check_ok(packed_open(&stored, &is, &in));
	is.is_plain = 1;
	check_ok(packed_open(&plain, &is, &in));
	const struct rh_model *model = stored.session.model;
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; t < model->block[b].tensors; t++)
			if (model->block[b].tensor[t].form && !model->block[b].tensor[t].joins) {
				same_as_quantised(&plain.session, &stored.session, b, t);
				matrices++;
			}
	assert_int_equal(matrices, 3 * model->config->num_hidden_layers); /* the last product of an MLP is 56 deep: it stays in bf16 */
	rig_close(&stored);
	rig_close(&plain);
}

/* Fed as it is stored a base trains, bit for bit, as one that each product quantises: in rounds, on several devices, from NVMe, its
 * transposes in a room and in the arena; and the last product of this model's MLPs stays in bf16. */
static void test_a_base_in_8_bits_trains_as_one_that_products_quantise(void **state)
{
	(void)state;
	struct drives drives;
	drives_make(&drives);
	for (int i = 0; i < 2; i++) {
		struct packed_case is = {
		        .file = "tests/reference/models/qwen3", .device = i ? "cpu:3" : "cpu:1", .dtype = RH_BF16, .fp8 = 1, .is_plain = 1};
		struct outcome plain, stored, other;
		assert_int_equal(run(&is, &plain), 0);
		is.is_plain = 0;
		assert_int_equal(run(&is, &stored), 0);
		same(&plain, &stored);
		assert_true(stored.form[RH_FORM_FP8_JOINT] > 0 && stored.plain_bytes > 0);
		assert_true(stored.store_bytes <= plain.store_bytes);
		is.made = RH_FORM_FP8_BLOCKS; /* of what does not feed: another base */
		assert_int_equal(run(&is, &other), 0);
		assert_int_equal(other.form[RH_FORM_FP8_JOINT], stored.form[RH_FORM_FP8_JOINT]);
		assert_true(other.form[RH_FORM_FP8_BLOCKS] > 0 && other.loss[0] != plain.loss[0]);
		free(other.adapter);
		is.made = RH_FORM_PLAIN;
		is.round = 2;
		is.nvme = drives.dir[0];
		assert_int_equal(run(&is, &other), 0);
		same(&plain, &other);
		free(other.adapter);
		is.nvme = NULL;
		assert_true(run_in_arena(is, stored.device_bytes, &other));
		same(&plain, &other);
		free(other.adapter);
		free(plain.adapter);
		free(stored.adapter);
	}
	drives_remove(&drives);
}

/* Linear attention, too: its five matrices, attention's four, and three of each MLP. */
static void test_matrices_of_another_mixer_are_made_packed(void **state)
{
	(void)state;
	struct packed_case is = {.file = "tests/reference/models/qwen3.5", .device = "cpu:1", .dtype = RH_F32};
	struct outcome full, made, other;
	assert_int_equal(run(&is, &full), 0);
	is.made = RH_FORM_INT8;
	assert_int_equal(run(&is, &made), 0);
	assert_int_equal(made.form[RH_FORM_INT8], 2 * (5 + 3) + 4 + 3);
	assert_true(made.loss[0] != full.loss[0] && fabs(made.loss[0] - full.loss[0]) < 0.1 * full.loss[0]);
	is.round = 2;
	assert_int_equal(run(&is, &other), 0);
	same(&made, &other);
	free(other.adapter);
	assert_true(run_in_arena(is, made.device_bytes, &other));
	same(&made, &other);
	free(other.adapter);
	free(full.adapter);
	free(made.adapter);
}

/* Rows that files have by key head: as long as no block of scales has rows of two parts. */
static void test_matrices_by_key_head_stay_packed_where_they_can(void **state)
{
	(void)state;
	static const struct {
		const char *file, *tensor;
		enum rh_form form;
	} cases[] = {{"tests/reference/packed/next-fp8", "model.layers.0.linear_attn.in_proj_qkvz.weight", RH_FORM_FP8_BLOCKS},
	             {"tests/reference/packed/next-fp8", "model.layers.0.linear_attn.in_proj_ba.weight", RH_FORM_PLAIN},
	             {"tests/reference/models/gguf-qwen3-next/model.gguf", "model.layers.0.linear_attn.in_proj_qkvz.weight", RH_FORM_Q8_0},
	             {"tests/reference/models/gguf-qwen3-next/model.gguf", "model.layers.1.linear_attn.in_proj_qkvz.weight", RH_FORM_Q8_0}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct packed_case is = {.file = cases[i].file, .device = "cpu:1", .dtype = RH_F32};
		struct rig rig;
		struct rig_input in;
		int found = 0;
		assert_int_equal(packed_open(&rig, &is, &in), 0);
		const struct rh_model *model = rig.session.model;
		for (int b = 0; b < model->blocks; b++)
			for (int t = 0; t < model->block[b].tensors; t++)
				if (!strcmp(model->block[b].tensor[t].name, cases[i].tensor)) {
					assert_int_equal(model->block[b].tensor[t].form, cases[i].form);
					found++;
				}
		assert_int_equal(found, 1);
		rig_close(&rig);
	}
}

/* A scale that is no number: one line that names the tensor. */
static void test_a_scale_that_is_no_number_is_refused(void **state)
{
	(void)state;
	static const uint8_t nan[2] = {0, 0x7e};
	char path[96];
	struct rh_gguf *gguf;
	struct rig rig;
	struct rig_input in;
	snprintf(path, sizeof path, "%s/spoilt.gguf", dir);
	packed_export(path);
	check_ok(rh_gguf_open(path, &gguf));
	const struct rh_gguf_tensor *tensor = rh_gguf_find(gguf, "blk.1.attn_v.weight");
	assert_non_null(tensor);
	assert_int_equal(tensor->dtype, RH_Q8_0);
	FILE *file = fopen(path, "r+b");
	assert_non_null(file);
	assert_int_equal(fseek(file, (long)tensor->offset + 3 * 34, SEEK_SET), 0);
	assert_int_equal(fwrite(nan, 1, sizeof nan, file), sizeof nan);
	fclose(file);
	rh_gguf_close(gguf);
	int rc = packed_open(&rig, &(struct packed_case){.file = path, .device = "cpu:1"}, &in);
	assert_int_equal(rc, -EINVAL);
	assert_non_null(strstr(rh_error(rc), "model.layers.1.self_attn.v_proj.weight holds nan at row 3, column 0"));
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_packed_bases_train_as_plain_ones),
	                                   cmocka_unit_test(test_every_type_of_gguf_files_stays_packed),
	                                   cmocka_unit_test(test_matrices_made_packed_train),
	                                   cmocka_unit_test(test_matrices_of_another_mixer_are_made_packed),
	                                   cmocka_unit_test(test_a_base_is_stored_as_8_bit_products_would_quantise_it),
	                                   cmocka_unit_test(test_a_base_in_8_bits_trains_as_one_that_products_quantise),
	                                   cmocka_unit_test(test_matrices_by_key_head_stay_packed_where_they_can),
	                                   cmocka_unit_test(test_a_scale_that_is_no_number_is_refused)};
	return cmocka_run_group_tests(tests, make_files, remove_files);
}
