/* LoRA on packed bases against PEFT on the same weights made plain (tests/reference/packed_train.py), one case a format, fp32: losses of 50
 * steps within 1e-5, as of two correct fp32 implementations on plain bases (test_parity.c). NF4 also against PEFT on bitsandbytes' own
 * layers. */
#include "train/packed.h"

#include "core/file.h"

#define PACKED "tests/reference/packed/"

enum { STEPS = 50, MICROS = 2 }; /* micro-batches of a step */

/* As steps() of the script. */
static struct rig_input packed_steps(int64_t vocabulary)
{
	enum { DOCUMENTS = STEPS * MICROS * PACKED_DOCUMENTS, TOKENS = DOCUMENTS * PACKED_LENGTH };
	static int32_t ids[TOKENS], mask[TOKENS], start[DOCUMENTS + 1], micro[STEPS * MICROS + 1];
	for (int i = 0; i < TOKENS; i++) {
		ids[i] = (int32_t)((7 * (int64_t)i + (int64_t)i * i / 3) % vocabulary);
		mask[i] = 1;
	}
	for (int d = 0; d <= DOCUMENTS; d++)
		start[d] = d * PACKED_LENGTH;
	for (int m = 0; m <= STEPS * MICROS; m++)
		micro[m] = m * PACKED_DOCUMENTS;
	return (struct rig_input){.ids = ids, .mask = mask, .start = start, .micro = micro, .micros = STEPS * MICROS};
}

static int matrices_in(const struct rh_model *model, enum rh_form form)
{
	int count = 0;
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; t < model->block[b].tensors; t++)
			count += model->block[b].tensor[t].form == form;
	return count;
}

struct lora_case {
	const char *file, *adapter, *name; /* name: of the reference */
	enum rh_form form;
	int matrices; /* in that form, at least */
	int steps;    /* that are compared; 0: all */
};

static void open_rig(const char *model, struct rig *rig)
{
	rig_open(rig, "llama2", NULL);
	rh_safetensors_close(rig->reference);
	check_ok(rh_safetensors_open(PACKED "lora.safetensors", &rig->reference));
	rig->config.model_name_or_path = (char *)(uintptr_t)model;
}

static void check_case(const struct lora_case *is)
{
	struct rig rig;
	char key[64];
	open_rig(is->file, &rig);
	rig.config.adapter_name_or_path = (char *)(uintptr_t)is->adapter;
	rig.config.use_lora = 1;
	check_ok(rh_session_open(&rig.config, RH_SESSION_TRAINS, &rig.session));
	assert_true(matrices_in(rig.session.model, is->form) >= is->matrices);
	struct rig_input in = packed_steps(rig.session.model_config->vocab_size);
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MICROS};
	check_ok(rh_session_start(&rig.session, &work));
	const struct rh_lr lr = {.scheduler = RH_LR_LINEAR, .base = 4e-3, .warmup_steps = 5, .total_steps = STEPS};
	double worst = 0;
	for (int step = 0; step < (is->steps ? is->steps : STEPS); step++) {
		double rate = rh_lr_at(&lr, step), loss = rig_step(&rig, &in, MICROS * step, MICROS, step);
		(void)rig_update(&rig, rate, step);
		snprintf(key, sizeof key, "%s.loss", is->name);
		worst = fmax(worst, fabs(loss / rig_double(&rig, key, step) - 1));
		snprintf(key, sizeof key, "%s.learning_rate", is->name);
		assert_true(fabs(rate - rig_double(&rig, key, step)) <= 1e-15);
	}
	printf("%s: worst loss error %.2e\n", is->name, worst);
	assert_true(worst <= 1e-5);
	rig_close(&rig);
}

static void test_lora_on_packed_checkpoints_equals_peft(void **state)
{
	(void)state;
	static const struct {
		const char *name;
		enum rh_form form;
	} cases[] = {{"bnb-nf4", RH_FORM_NF4},
	             {"bnb-nf4-nested", RH_FORM_NF4_NESTED},
	             {"bnb-fp4", RH_FORM_BNB_FP4},
	             {"bnb-fp4-nested", RH_FORM_BNB_FP4_NESTED},
	             {"bnb-int8", RH_FORM_INT8},
	             {"fp8-blocks", RH_FORM_FP8_BLOCKS},
	             {"fp8", RH_FORM_FP8},
	             {"fp8-blocks-e8m0", RH_FORM_FP8_BLOCKS},
	             {"nvfp4-compressed", RH_FORM_NVFP4},
	             {"nvfp4-modelopt", RH_FORM_NVFP4}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char file[96];
		snprintf(file, sizeof file, PACKED "%s", cases[i].name);
		int matrices = cases[i].form == RH_FORM_FP8_BLOCKS ? 3 : 7; /* matrices of one block have one scale, as those of FP8 */
		check_case(&(struct lora_case){file, PACKED "adapter", cases[i].name, cases[i].form, matrices, 0});
	}
}

static void test_lora_on_nf4_equals_peft_on_bitsandbytes(void **state)
{
	(void)state;
	check_case(&(struct lora_case){PACKED "bnb-nf4", PACKED "adapter", "bnb-nf4.bnb", RH_FORM_NF4, 7, 0});
	check_case(&(struct lora_case){PACKED "bnb-nf4-nested", PACKED "adapter", "bnb-nf4-nested.bnb", RH_FORM_NF4_NESTED, 7, 0});
}

/* Merged into plain weights the model has the loss that the adapter's training begins with. */
static void check_merged(const struct lora_case *is)
{
	struct rig rig;
	struct rh_merged merged;
	char dir[64], key[64];
	snprintf(dir, sizeof dir, "%s/rh-packed-XXXXXX", check_place("/tmp"));
	assert_non_null(mkdtemp(dir));
	check_ok(rh_merge(&(struct rh_merge){.model = is->file, .adapter = is->adapter, .dir = dir, .task = RH_TASK_UNSET, .dtype = RH_F32},
	                  &merged));
	open_rig(dir, &rig);
	check_ok(rh_session_open(&rig.config, RH_SESSION_TRAINS, &rig.session));
	struct rig_input in = packed_steps(rig.session.model_config->vocab_size);
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MICROS};
	check_ok(rh_session_start(&rig.session, &work));
	double loss = rig_step(&rig, &in, 0, MICROS, 0);
	snprintf(key, sizeof key, "%s.loss", is->name);
	double error = fabs(loss / rig_double(&rig, key, 0) - 1);
	printf("%s merged: loss error %.2e\n", is->name, error);
	assert_true(error <= 1e-5);
	rig_close(&rig);
	check_ok(rh_dir_remove(dir));
}

/* Qwen3-MoE in fp8, its experts one by one in the files, and GPT-OSS in MXFP4: adapters of experts too. The
 * latter's scores of experts are so near to one another that from step 14 on rounding decides between them now and then. */
static void test_lora_on_packed_experts_equals_peft(void **state)
{
	(void)state;
	static const struct lora_case cases[] = {
	        {PACKED "moe-fp8", PACKED "adapter-moe-fp8", "moe-fp8", RH_FORM_FP8_BLOCKS, 15, 0},
	        {"tests/reference/ckpt/gpt-oss", PACKED "adapter-gpt-oss", "gpt-oss", RH_FORM_MXFP4, 2, 12}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		check_case(&cases[i]);
		check_merged(&cases[i]);
	}
}

/* Every type of GGUF files, embedding and head too; packed_make's seed is 100 and the type's number in GGUF files. */
static void test_lora_on_gguf_types_equals_peft(void **state)
{
	(void)state;
	static const struct {
		const char *name;
		enum rh_form form;
		int number;
	} cases[] = {{"gguf.Q4_0", RH_FORM_Q4_0, 2},           {"gguf.Q4_1", RH_FORM_Q4_1, 3},          {"gguf.Q5_0", RH_FORM_Q5_0, 6},
	             {"gguf.Q5_1", RH_FORM_Q5_1, 7},           {"gguf.Q8_0", RH_FORM_Q8_0, 8},          {"gguf.Q2_K", RH_FORM_Q2_K, 10},
	             {"gguf.Q3_K", RH_FORM_Q3_K, 11},          {"gguf.Q4_K", RH_FORM_Q4_K, 12},         {"gguf.Q5_K", RH_FORM_Q5_K, 13},
	             {"gguf.Q6_K", RH_FORM_Q6_K, 14},          {"gguf.IQ4_NL", RH_FORM_IQ4_NL, 20},     {"gguf.IQ4_XS", RH_FORM_IQ4_XS, 23},
	             {"gguf.MXFP4", RH_FORM_MXFP4_BLOCKS, 39}, {"gguf.NVFP4", RH_FORM_NVFP4_BLOCKS, 40}};
	char dir[64], file[96];
	snprintf(dir, sizeof dir, "%s/rh-packed-XXXXXX", check_place("/tmp"));
	assert_non_null(mkdtemp(dir));
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		snprintf(file, sizeof file, "%s/type.gguf", dir);
		packed_make(file, rh_form_traits(cases[i].form)->element, 100 + (uint64_t)cases[i].number);
		check_case(&(struct lora_case){file, PACKED "adapter-gguf", cases[i].name, cases[i].form, 9, 0});
	}
	check_ok(rh_dir_remove(dir));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_lora_on_packed_checkpoints_equals_peft),
	                                   cmocka_unit_test(test_lora_on_nf4_equals_peft_on_bitsandbytes),
	                                   cmocka_unit_test(test_lora_on_packed_experts_equals_peft),
	                                   cmocka_unit_test(test_lora_on_gguf_types_equals_peft)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
