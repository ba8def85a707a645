/* The process is asked to stop, by a signal: what waits for others should not wait on. */
#ifndef RH_CORE_STOP_H
#define RH_CORE_STOP_H

/* From a signal's handler too. */
void rh_stop_ask(void);
void rh_stop_forget(void);
int rh_stop_is_asked(void);

#endif
