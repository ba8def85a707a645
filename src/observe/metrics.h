/* metrics.jsonl: one line of JSON for each logged step and each evaluation, whole when it is written; and versions.jsonl, of the same form.
 */
#ifndef RH_OBSERVE_METRICS_H
#define RH_OBSERVE_METRICS_H

#include "core/error.h"
#include "observe/report.h"

/* Opens `path` to append. Cuts off the lines of steps after `keep_step` (0: all lines), a line that a crash left incomplete, and, with a
 * note, everything from a line on that is no metric. */
struct rh_metrics;
int rh_metrics_open(const char *path, int64_t keep_step, struct rh_metrics **out) RH_MUST;

/* Keys: step, epoch, loss, grad_norm, learning_rate, tokens_per_second, elapsed_seconds, trained_tokens, compute_seconds,
 * weights_wait_seconds, activations_wait_seconds, gradients_wait_seconds, optimizer_wait_seconds, vram_peak_bytes, ram_peak_bytes,
 * nvme_peak_bytes; with losses over answers rh_figure_name's; with local updates version_drift; where NVMe is used nvme_wait_seconds and,
 * a number for each drive in the order of nvme_dirs, nvme_read_bytes and nvme_written_bytes. Numbers read back as the same double; what is
 * not finite is null. On failure the file ends with its last whole line. */
int rh_metrics_step(struct rh_metrics *metrics, const struct rh_step_report *report) RH_MUST;
/* Keys: step, epoch, eval_loss, eval_tokens, eval_rows, eval_runtime (seconds), elapsed_seconds; and rh_figure_name's behind eval_. */
int rh_metrics_eval(struct rh_metrics *metrics, const struct rh_eval_report *report) RH_MUST;
/* An answer of sample_prompts, in a line of its own. Keys: step, epoch, sample, prompt, answer (both UTF-8; what is beyond
 * RH_METRICS_ANSWER_BYTES is left out), tokens, ended. */
enum { RH_METRICS_ANSWER_BYTES = 1 << 16 };
int rh_metrics_sample(struct rh_metrics *metrics, const struct rh_sample_report *report) RH_MUST;
/* versions.jsonl: keys step, layers (the first and the last), forward and backward (a number for each micro-batch). */
int rh_metrics_versions(struct rh_metrics *metrics, const struct rh_versions_report *report) RH_MUST;

/* NULL is legal. */
void rh_metrics_close(struct rh_metrics *metrics);

#endif
