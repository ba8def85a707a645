/* Is there disk space for what a run will write? Found out before the run begins, not when its first checkpoint fails. */
#ifndef RH_CHECKPOINT_DISK_ROOM_H
#define RH_CHECKPOINT_DISK_ROOM_H

#include "session/session.h"

/* `checkpoints`: how many the run is to write from now on; with save_total_limit those in output_dir make room for them. -ENOSPC names
 * output_dir and the bytes. */
int rh_disk_room_check(const struct rh_session *session, int64_t checkpoints) RH_MUST;

/* Bytes of one checkpoint. */
int64_t rh_disk_room_of_checkpoint(const struct rh_session *session);

/* Is there space for one checkpoint more? Asked before its first byte is written. */
int rh_disk_room_check_one(const struct rh_session *session) RH_MUST;

#endif
