import { stayInBackground, type Client } from './connection';
import { channelName } from './keys';

/** `grant <lock id> <fence> <ms of Redis' clock> <length of the line> <key>`: this waiter was given the lock. */
export interface HandOver {
  key: string;
  lockId: string;
  fence: number;
  at: number;
  queue: number;
}

interface Listener {
  onHandOver(message: HandOver): void;
  /** `look <key>`: the lock was handed to another process, and something will change soon. */
  onLook(key: string): void;
  /** `more <key>`: there is room for more of the line than one script serves. */
  onMore(key: string): void;
  /** `out <lock id> <key>`: this waiter has to leave the line; `out * <key>`: some of this key have to. */
  onOut(key: string, lockId: string): void;
  /** After every subscription: messages that were sent meanwhile are gone, so everybody has to ask again. */
  onListening(): void;
}

/**
 * The one subscriber connection and one channel of this process. Opened when somebody waits for the first time.
 * Waiting works without it too, slower: where the user has no right to subscribe, and until it is open.
 */
export class WakeUp {
  private client: Client | undefined;
  private subscribed = false;
  /** Once it has listened, a message that does not arrive says that this process is away. */
  private heard = false;
  /** This user may not subscribe. */
  private refused = false;
  private name = channelName();

  constructor(
    private readonly make: () => Client,
    private readonly listener: Listener,
  ) {}

  /** Where this process is told of a grant; `poll:…` while it can't be told and looks for itself. */
  get address(): string {
    return this.heard ? this.name : `poll:${this.name}`;
  }

  get listening(): boolean {
    return this.subscribed;
  }

  /** Begins to listen, where that was not begun yet. */
  open(): void {
    if (!this.client && !this.refused) this.connect();
  }

  close(): void {
    const { client } = this;
    this.client = undefined;
    this.subscribed = false;
    client?.disconnect();
  }

  private connect(): void {
    const client = this.make();
    this.client = client;
    client.on('error', () => {});
    client.on('message', (_channel: string, text: string) => this.hear(text));
    client.on('close', () => {
      this.subscribed = false;
    });
    client.on('reconnecting', () => stayInBackground(client));
    // Given up by the caller's own rules: the next one who waits tries anew.
    client.on('end', () => {
      if (this.client === client) this.client = undefined;
    });
    const subscribe = () => {
      stayInBackground(client);
      client.subscribe(this.name).then(
        () => {
          if (this.client !== client) return;
          this.subscribed = this.heard = true;
          this.listener.onListening();
        },
        (error: unknown) => {
          // A dropped connection subscribes again when it is back; a refusal is final.
          if (!/NOPERM|unknown command/i.test(String(error))) return;
          this.refused = true;
          this.heard = false;
          client.disconnect();
          // Whoever is in line under the channel's name has to be found there under the other one.
          this.listener.onListening();
        },
      );
    };
    client.on('ready', subscribe);
    if (client.status === 'ready') subscribe();
    else if (client.status === 'wait') client.connect().catch(() => {});
  }

  private hear(text: string): void {
    const grant = /^grant (\S+) (\d+) (\d+) (\d+) ([\s\S]*)$/.exec(text);
    if (grant) {
      const [, lockId = '', fence, at, queue, key = ''] = grant;
      this.listener.onHandOver({ key, lockId, fence: Number(fence), at: Number(at), queue: Number(queue) });
    } else if (text.startsWith('look ')) {
      this.listener.onLook(text.slice(5));
    } else if (text.startsWith('more ')) {
      this.listener.onMore(text.slice(5));
    }
    const out = /^out (\S+) ([\s\S]*)$/.exec(text);
    if (out) this.listener.onOut(String(out[2]), String(out[1]));
  }
}
