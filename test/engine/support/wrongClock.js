'use strict';

// A machine whose clock is wrong by CLOCK_AHEAD_MS. Timers and performance.now() run as they do anywhere.

const ahead = Number(process.env.CLOCK_AHEAD_MS);
const RealDate = Date;

class WrongDate extends RealDate {
  constructor(...args) {
    super(...(args.length === 0 ? [RealDate.now() + ahead] : args));
  }

  static now() {
    return RealDate.now() + ahead;
  }
}

globalThis.Date = WrongDate;
