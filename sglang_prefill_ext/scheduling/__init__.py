"""From waiting requests to finished ones: queue, order, planning. No torch, no device."""
