/* Event files that TensorBoard reads: TFRecords of `Event` messages, which hold scalars alone. No library is needed for them.
 * Source: tensorflow/core/util/event.proto, summary.proto and tsl/lib/io/record_writer.h. */
#ifndef RH_OBSERVE_EVENTS_H
#define RH_OBSERVE_EVENTS_H

#include "core/error.h"
#include "observe/report.h"

/* Creates a file below dir/runs. `step`: the step that the run continues from; TensorBoard then ignores what earlier files hold beyond
 * it. */
struct rh_events;
int rh_events_open(const char *dir, int64_t step, struct rh_events **out) RH_MUST;
/* train/loss, train/grad_norm, train/learning_rate, train/epoch, train/tokens_per_second: as transformers names them. A value that is not
 * known is left out. */
int rh_events_step(struct rh_events *events, const struct rh_step_report *report) RH_MUST;
/* eval/loss, eval/runtime */
int rh_events_eval(struct rh_events *events, const struct rh_eval_report *report) RH_MUST;
void rh_events_close(struct rh_events *events); /* NULL is legal */

/* CRC-32C (Castagnoli) of a record, as its files have it: rotated and offset. */
uint32_t rh_events_checksum(const void *bytes, size_t length);

#endif
