"""From waiting requests to finished ones: queue, order, planning. Pure; no clock, no device."""
