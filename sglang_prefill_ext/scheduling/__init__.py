"""From waiting requests to finished ones: queue, order, planning. No torch, no clock, no device."""
