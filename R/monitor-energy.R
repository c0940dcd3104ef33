# Energy in the record of a monitor.

as_energy <- function(energy) {
  frame <- records_frame(energy, c("device", "wh", "mean_w", "seconds", "source"))
  numeric_columns(frame, c("wh", "mean_w", "seconds"))
}

# A line for each device whose energy was measured. A record of an earlier version has none.
format_energy <- function(energy) {
  told <- energy[!is.na(energy$wh), ]
  if (NROW(told) == 0) {
    return(NULL)
  }
  sprintf(
    "Energy of %s: %s (%.0f W on average, by %s).", told$device, format_wh(told$wh), told$mean_w,
    told$source
  )
}

format_wh <- function(wh) {
  ifelse(wh < 1, paste(signif(1000 * wh, 3), "mWh"), paste(signif(wh, 3), "Wh"))
}
