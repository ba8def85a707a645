/* What users of other trainers complain about most, and the test that holds it here. The tests named are there, and run. */
#include "house/tree.h"

static const struct {
	const char *complaint, *file, *test;
} held[] = {
        {"the kernel ends the run: host memory has no budget", "train/test_budget", "test_a_budget_holds_to_the_byte"},
        {"what a plan says is not what a run takes", "train/test_memory", "test_a_runs_memory_is_the_plans"},
        {"pinned memory is taken twice", "cuda/test_device", "test_host_memory_is_pinned_once"},
        {"a large pin fails with memory free", "offload/test_pin", "test_memory_that_cannot_be_locked_is_left_as_it_is"},
        {"the optimizer on the CPU holds up the step", "train/test_updater", "test_updates_as_gradients_arrive_equal_a_plain_loop"},
        {"NVMe is far slower than the drive", "offload/test_space", "test_a_queue_moves_records_beside_its_caller"},
        {"checkpoints lack what lies on NVMe", "offload/test_spill", "test_state_on_nvme_is_state_in_memory"},
        {"checkpoints are written while weights change", "train/test_saving", "test_a_slow_checkpoint_holds_the_weights_of_its_own_step"},
        {"a kill or power cut loses the checkpoint", "crash/test_replay", "test_no_state_that_a_power_cut_leaves_loses_a_checkpoint"},
        {"gradients are lost with offload", "train/test_parity", "test_gradients_equal_hugging_face"},
        {"gradients are lost when devices are added", "train/test_equality", "test_full_training_is_the_same_everywhere"},
        {"the loss is averaged wrongly under accumulation", "train/test_parity", "test_full_curves_equal_hugging_face"},
        {"pairs are weighed by their micro-batches", "cli/test_preference", "test_each_loss_gives_the_figures_of_trl"},
        {"label masks are all zero or all one", "data/test_forms", "test_each_form_gives_its_references_ids_and_masks"},
        {"nothing is trained, and yet it says success", "cli/test_bad_files", "test_rows_that_cannot_be_trained_are_refused"},
        {"rows are cut without a word", "data/test_dataset", "test_answers_that_lose_their_end_are_counted_unmasked_too"},
        {"the model never stops", "data/test_dataset", "test_completion_masks_the_prompt_and_ends_with_eos"},
        {"it is asked through another template than it learnt", "cli/test_merged", "test_a_merged_gguf_is_asked_as_it_was_trained"},
        {"packed documents see one another", "device/test_ops_attention", "test_attention_of_a_packed_document_equals_it_alone"},
        {"resuming needs the same number of GPUs", "train/test_resume", "test_resumed_runs_equal_runs_that_never_stopped"},
        {"merged weights are damaged", "train/test_parity", "test_merged_models_have_the_adapters_logits"},
        {"exported adapters are damaged", "ckpt/test_merge", "test_adapter_gguf_adds_what_the_merge_does"},
        {"a failing GPU hangs the run", "device/test_cpu_device", "test_launch_fault_is_sticky_and_nothing_hangs"},
        {"a stalled line between machines hangs the run", "cli/test_box_faults", "test_a_stalled_box_is_waited_for_then_given_up"},
        {"a run is lost late, to one bad step", "cli/test_trouble", "test_a_step_whose_gradient_is_not_finite_is_skipped"},
        {"a run is lost when it is asked to stop", "cli/test_hostile", "test_signals_that_end_programs_save_a_checkpoint"},
        {"the same seed gives another result", "train/test_equality", "test_two_runs_are_the_same"},
};

static void test_each_complaint_has_a_test_that_holds_it(void **state)
{
	(void)state;
	int missing = 0;
	for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
		char path[PATH_BYTES], run[PATH_BYTES]; /* how a program runs a test */
		struct rh_bytes file;
		snprintf(path, sizeof path, "tests/%s.c", held[i].file);
		snprintf(run, sizeof run, "cmocka_unit_test(%s)", held[i].test);
		if (rh_file_load(path, &file)) {
			print_error("%s: %s is not there\n", held[i].complaint, path);
			rh_error_clear();
			missing++;
			continue;
		}
		if (!strstr(file.bytes, run)) {
			print_error("%s: %s runs no %s\n", held[i].complaint, path, held[i].test);
			missing++;
		}
		rh_bytes_free(&file);
	}
	assert_int_equal(missing, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_each_complaint_has_a_test_that_holds_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
