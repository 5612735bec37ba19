"""What this Mac and its cables really do, measured without fighting with the inference that runs on them.

Read from the inside out: ``probes`` (what there is to measure, bounded by what), ``due`` (which of them runs now), ``gates``
(what must not run beside a group), ``desk`` (one Mac, one probe between Macs at a time), ``results`` (what was found, kept over
a restart), and ``prober``, the thin loop that puts them together. Pure modules take the time as an argument.
"""
